"""Export: the stream written as sharded safetensors, a checkpoint that vLLM and transformers load without us.

A shard is written piece by piece, which the safetensors library cannot (it wants all tensors of a file in memory).
It has a temporary name until it is synced and renamed; the index that makes the folder a checkpoint comes last, so a
killed export never looks whole, and the next one goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import WRITABLE, MappingError, UsageError
from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Assignment
from ggufmap.mapping.transforms import KINDS
from ggufmap.stream.dequantise import value_dtype
from ggufmap.stream.lazy import in_parts
from ggufmap.stream.stream import Lazy, check_streamable, stream
from ggufmap.stream.workers import DEFAULT_LIMIT, Budget, Workers

_BUFFER_SHARE = 16  # what is written at once takes this part of the memory
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
}
INDEX = "model.safetensors.index.json"
_STATE = ".ggufmap-export.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote: files, bytes, and how many values of fp16 went out of range."""

    files: tuple[str, ...]
    nbytes: int
    reused: int
    out_of_range: int


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Shard:
    file: str
    assignments: tuple[Assignment, ...]
    nbytes: int


def export(
    plan: Plan,
    checkpoint: Checkpoint,
    folder: Path,
    *,
    dtype: torch.dtype,
    shard_bytes: int,
    progress: Callable[[int], None] | None = None,
    memory: int = DEFAULT_LIMIT,
) -> Exported:
    """Write the checkpoint tensors of `plan` into `folder`: quantised ones in `dtype`, plain ones as they are stored.

    At most `memory` bytes are held. Raises UsageError when the folder holds something else, or another export, or a
    tensor cannot be read within `memory`; MappingError when the plan has problems.
    """
    check_streamable(plan, checkpoint)
    workers = Workers(Budget(memory))
    shards = _shards(plan, checkpoint, dtype, shard_bytes)
    identity = {"header_hash": checkpoint.header_hash(), "dtype": str(dtype), "shard_bytes": shard_bytes}
    _claim(folder, identity)
    reused = out_of_range = 0
    with workers:
        for shard in shards:
            path = folder / shard.file
            if path.is_file():
                reused += 1
                if progress is not None:
                    progress(sum(checkpoint.tensors[name].nbytes for a in shard.assignments for name in a.tensors))
                continue
            wanted = set(shard.assignments)
            tensors = stream(plan, checkpoint, dtype, progress, wanted.__contains__, Lazy(), workers)
            out_of_range += _write(path, _entries(shard, checkpoint, dtype), tensors, workers.budget)
    weight_map = {name: shard.file for shard in shards for a in shard.assignments for name, _ in a.outputs}
    total = sum(shard.nbytes for shard in shards)
    _sync_write(folder / INDEX, json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1))
    (folder / _STATE).unlink()
    return Exported(tuple(shard.file for shard in shards), total, reused, out_of_range)


def _shards(plan: Plan, checkpoint: Checkpoint, dtype: torch.dtype, limit: int) -> list[_Shard]:
    """Assignments in file order, cut into shards of at most `limit` bytes where an assignment itself is not larger."""
    groups: list[list[Assignment]] = [[]]
    sizes = [0]
    for assignment in plan.assignments:
        nbytes = _nbytes(assignment, checkpoint, dtype)
        if groups[-1] and sizes[-1] + nbytes > limit:
            groups.append([])
            sizes.append(0)
        groups[-1].append(assignment)
        sizes[-1] += nbytes
    count = len(groups)
    return [
        _Shard(f"model-{no:05d}-of-{count:05d}.safetensors", tuple(group), size)
        for no, (group, size) in enumerate(zip(groups, sizes, strict=True), start=1)
    ]


def _nbytes(assignment: Assignment, checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    constants = sum(4 * math.prod(constant.shape) for constant in assignment.constants)  # float32
    stored: int = _stored_dtype(assignment, checkpoint, dtype).itemsize
    return constants + sum(math.prod(shape) for shape in assignment.shapes) * stored


def _stored_dtype(assignment: Assignment, checkpoint: Checkpoint, dtype: torch.dtype) -> torch.dtype:
    if KINDS[assignment.transform.name].computes:
        return torch.float32
    return value_dtype(checkpoint.tensors[assignment.tensors[0]].type) or dtype


def _entries(shard: _Shard, checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, _Entry]:
    """The shard's tensors, in the order in which they are streamed."""
    found = {}
    for assignment in shard.assignments:
        stored = _stored_dtype(assignment, checkpoint, dtype)
        for name, shape in zip(assignment.checkpoint, assignment.shapes, strict=True):
            found[name] = _Entry(stored, shape)
        for constant in assignment.constants:
            found[constant.name] = _Entry(torch.float32, constant.shape)
    return found


def _claim(folder: Path, identity: dict[str, object]) -> None:
    """Make `folder` ours: new, empty, or the unfinished export of the same file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state = folder / _STATE
        if state.is_file():
            if json.loads(state.read_text(encoding="utf-8")) != identity:
                raise UsageError(f"{folder}: holds the unfinished export of another file or dtype", hint="Remove it.")
        elif any(folder.iterdir()):
            raise UsageError(f"{folder}: is not empty", hint="Name a new folder.")
        else:
            _sync_write(state, json.dumps(identity))
    except (OSError, ValueError) as e:
        raise UsageError(f"{folder}: cannot be used: {e}", hint=WRITABLE) from e


def _write(path: Path, entries: dict[str, _Entry], tensors: Iterator[tuple[str, torch.Tensor]], budget: Budget) -> int:
    """Write one shard; how many of its values are not finite in float16 though they are in the file."""
    lost = 0
    scratch = path.with_name(f".{path.name}.partial")
    try:
        with scratch.open("wb") as file:
            file.write(_header(entries))
            for name, tensor in tensors:
                for part in _parts(tensor, name, entries.pop(name), budget):
                    lost += int((~torch.isfinite(part)).sum()) if part.dtype is torch.float16 else 0
                    file.write(part.view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
    except OSError as e:
        scratch.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {os.strerror(e.errno or 0)}", hint=WRITABLE) from e
    return lost


def _parts(tensor: torch.Tensor, name: str, entry: _Entry, budget: Budget) -> Iterator[torch.Tensor]:
    """The values of a streamed tensor, flat, some MB at a time."""
    if tuple(tensor.shape) != entry.shape:
        raise MappingError(f"{name}: shape {tuple(tensor.shape)}, {entry.shape} planned")
    for part in in_parts(tensor, budget.limit // _BUFFER_SHARE // entry.dtype.itemsize):
        with budget.hold(part.numel() * entry.dtype.itemsize, f"writing {name}"):
            values = torch.empty(part.shape, dtype=entry.dtype, device="cpu")
            values.copy_(part)
            yield values.view(-1)
            del values


def _header(entries: dict[str, _Entry]) -> bytes:
    """The header of a safetensors file: its length, then JSON with the place of each tensor behind it."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, entry in entries.items():
        end = start + math.prod(entry.shape) * entry.dtype.itemsize
        table[name] = {"dtype": _NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _sync_write(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.partial")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)
