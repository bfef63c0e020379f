"""Export: the stream written as sharded safetensors, a checkpoint that vLLM and transformers load without us.

Memory is bounded by one shard. A shard is written under a temporary name, synced and renamed; the index that makes the
folder a checkpoint comes last, so a killed export never looks whole, and the next one goes on where it stopped.
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
from ggufmap.errors import MissingDependencyError, UsageError
from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Assignment
from ggufmap.stream.dequantise import value_dtype
from ggufmap.stream.stream import check_streamable, stream

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
) -> Exported:
    """Write the checkpoint tensors of `plan` into `folder`: quantised ones in `dtype`, plain ones as they are stored.

    Raises UsageError when the folder holds something else, or another export; MappingError when the plan has problems;
    MissingDependencyError without safetensors.
    """
    check_streamable(plan, checkpoint)
    shards = _shards(plan, checkpoint, dtype, shard_bytes)
    identity = {"header_hash": checkpoint.header_hash(), "dtype": str(dtype), "shard_bytes": shard_bytes}
    _claim(folder, identity)
    reused = out_of_range = 0
    for shard in shards:
        path = folder / shard.file
        if path.is_file():
            reused += 1
        else:
            out_of_range += _write(path, shard, plan, checkpoint, dtype)
        if progress is not None:
            progress(sum(checkpoint.tensors[name].nbytes for a in shard.assignments for name in a.tensors))
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
    stored = value_dtype(checkpoint.tensors[assignment.tensors[0]].type) or dtype
    return sum(math.prod(shape) for shape in assignment.shapes) * int(stored.itemsize)


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
        raise UsageError(f"{folder}: cannot be used: {e}") from e


def _write(path: Path, shard: _Shard, plan: Plan, checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """Write one shard; how many of its values are not finite in `dtype` though they are in the file."""
    try:
        from safetensors.torch import save_file
    except ImportError as e:
        raise MissingDependencyError("export needs safetensors", hint="pip install 'ggufmap[export]'") from e
    wanted = set(shard.assignments)
    tensors = {name: tensor.contiguous() for name, tensor in _stream(plan, checkpoint, dtype, wanted)}
    lost: int = sum(int((~torch.isfinite(t)).sum()) for t in tensors.values()) if dtype is torch.float16 else 0
    scratch = path.with_name(f".{path.name}.partial")
    save_file(tensors, scratch, metadata={"format": "pt"})
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    scratch.rename(path)
    return lost


def _stream(
    plan: Plan, checkpoint: Checkpoint, dtype: torch.dtype, wanted: set[Assignment]
) -> Iterator[tuple[str, torch.Tensor]]:
    return stream(plan, checkpoint, dtype, wanted=wanted.__contains__)


def _sync_write(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.partial")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(path)
