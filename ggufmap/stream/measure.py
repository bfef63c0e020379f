"""How fast this machine loads a file, stage by stage, beside what it could do at best: measured in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import UsageError
from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Assignment
from ggufmap.native import native
from ggufmap.stream.dequantise import decodes_to, is_native
from ggufmap.stream.lazy import in_parts
from ggufmap.stream.stream import Lazy, check_streamable, stream
from ggufmap.stream.workers import Budget, Workers

_DESTINATION_SHARE = 4  # the reused destination takes this part of the memory
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds of each pass, and bytes. Stage seconds are over all `threads` together.

    `first_read_s` reads the tensors' bytes as the page cache has them, `read_s` once more; `write_s` writes as many
    bytes as the model's values have into the destination; `load_s` is the load: read, decoded, rounded, written.
    Decoders that `compiler` has built write into the destination: `stage_copy_s` is then only what they do not decode.
    """

    stored_bytes: int
    destination_bytes: int
    threads: int
    piece_values: int
    memory_limit: int
    memory_peak: int
    first_read_s: float
    read_s: float
    write_s: float
    load_s: float
    stage_read_s: float
    stage_decode_s: float
    stage_copy_s: float
    compiler: str | None
    """What built the decoders of all quantised types of the file; None where libgguf decodes one."""

    @property
    def bound_s(self) -> float:
        """The least that any load takes: every byte read once, every value written once."""
        return self.read_s + self.write_s


def measure(
    plan: Plan,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    memory: int,
    most: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Figures:
    """Load what `plan` maps into reused host memory of `dtype`, within `memory` bytes.

    At most about `most` stored bytes, from the start of the plan. They are read three times; `progress` gets each.
    Raises as `stream` does.
    """
    check_streamable(plan, checkpoint)
    chosen = _chosen(plan, checkpoint, most)
    stored = [checkpoint.tensors[name] for assignment in chosen for name in assignment.tensors]
    spans = [
        (tensor.split, tensor.offset + start, min(_READ_BYTES, tensor.nbytes - start))
        for tensor in stored
        for start in range(0, tensor.nbytes, _READ_BYTES)
    ]
    types = {tensor.type for tensor in stored if not is_native(tensor.type)}
    compiled = all(decodes_to(type, torch.bfloat16) for type in types)  # and built now, if ever
    budget = Budget(memory)
    size = memory // _DESTINATION_SHARE
    with budget.hold(size, "the destination"), Workers(budget, background=True) as workers:
        destination = torch.ones(size // dtype.itemsize, dtype=dtype, device="cpu")
        first_read_s = _read(checkpoint, spans, workers, progress)
        read_s = _read(checkpoint, spans, workers, progress)
        wanted = set(chosen)
        matrix = next((a for a in chosen if len(checkpoint.tensors[a.tensors[0]].shape) > 1), chosen[0])
        for _, tensor in stream(plan, checkpoint, dtype, None, {matrix}.__contains__, Lazy(), workers):
            # What torch imports at the first operation on a lazy tensor, half a second, is no part of a load.
            destination[:1].copy_(tensor.reshape(-1)[:1])
            break
        lazy = Lazy()
        started, values = time.perf_counter(), 0
        for name, tensor in stream(plan, checkpoint, dtype, progress, wanted.__contains__, lazy, workers):
            values += tensor.numel()
            for part in in_parts(tensor, len(destination)):
                if part.numel() > len(destination):
                    raise UsageError(f"{name}: its parts do not fit into {size} bytes", hint="Raise --max-host-memory.")
                destination[: part.numel()].view(part.shape).copy_(part)
        load_s = time.perf_counter() - started
        write_s = _write(values, destination, workers)
    return Figures(
        stored_bytes=sum(tensor.nbytes for tensor in stored),
        destination_bytes=values * dtype.itemsize,
        threads=workers.threads,
        piece_values=workers.piece,
        memory_limit=memory,
        memory_peak=budget.peak,
        first_read_s=first_read_s,
        read_s=read_s,
        write_s=write_s,
        load_s=load_s,
        stage_read_s=lazy.meter.read_s,
        stage_decode_s=lazy.meter.decode_s,
        stage_copy_s=lazy.counter.seconds,
        compiler=native().compiler if types and compiled else None,
    )


def _chosen(plan: Plan, checkpoint: Checkpoint, most: int | None) -> list[Assignment]:
    """Assignments in file order, up to `most` stored bytes; at least one."""
    chosen: list[Assignment] = []
    total = 0
    for assignment in plan.assignments:
        nbytes = sum(checkpoint.tensors[name].nbytes for name in assignment.tensors)
        if chosen and most is not None and total + nbytes > most:
            break
        chosen.append(assignment)
        total += nbytes
    return chosen


def _read(
    checkpoint: Checkpoint,
    spans: list[tuple[int, int, int]],
    workers: Workers,
    progress: Callable[[int], None] | None,
) -> float:
    """Seconds to read all spans, in order, on the threads."""

    def read(span: tuple[int, int, int]) -> None:
        split, offset, nbytes = span
        with workers.scratch(nbytes, "a read") as buffer:
            checkpoint.splits[split].source.read_into(offset, buffer[:nbytes].data)

    started = time.perf_counter()
    for start in range(0, len(spans), 64):
        group = spans[start : start + 64]
        workers.each(read, group)
        if progress is not None:
            progress(sum(nbytes for _, _, nbytes in group))
    workers.drain()
    return time.perf_counter() - started


def _write(values: int, destination: torch.Tensor, workers: Workers) -> float:
    """Seconds to copy as many values, of the destination's dtype, into it, over and over, on the threads."""
    source = torch.ones(workers.piece, dtype=destination.dtype, device="cpu")
    started = time.perf_counter()
    left = values
    while left:
        part = destination[: min(left, len(destination))]
        workers.each(lambda piece: piece.copy_(source[: len(piece)]), part.split(len(source)))
        left -= len(part)
    workers.drain()
    return time.perf_counter() - started
