"""The stream: a Plan and an open checkpoint in, (checkpoint name, tensor) pairs out, a few tensors in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import MappingError
from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Assignment
from ggufmap.mapping.transforms import KINDS
from ggufmap.stream.dequantise import read_values, require_decodable
from ggufmap.stream.lazy import Counter, lazy_tensor
from ggufmap.stream.sources import Meter, TensorSource
from ggufmap.stream.transforms import apply

_MAX_THREADS = 8


def check_streamable(plan: Plan, checkpoint: Checkpoint) -> None:
    """Everything that can be known before the first byte is copied.

    Raises MappingError when the plan has problems, UnsupportedError when a tensor's type cannot be decoded.
    """
    if not plan.ok:
        problems = plan.problems()
        shown = "\n".join(f"  {line}" for line in problems[:20])
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise MappingError(
            f"{checkpoint.path}: the mapping has {len(problems)} problems:\n{shown}{more}",
            hint=f"ggufmap audit {checkpoint.path} explains them.",
        )
    for assignment in plan.assignments:
        for name in assignment.tensors:
            require_decodable(checkpoint.tensors[name])


def stream(
    plan: Plan,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Callable[[int], None] | None = None,
    wanted: Callable[[Assignment], bool] = lambda assignment: True,
    lazy: Lazy | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every checkpoint tensor of the plan's `wanted` assignments, in file order, on the CPU.

    Quantised tensors come in `dtype`, plain ones in the type they are stored in. Peak memory is one checkpoint tensor
    (one expert of a stack; the whole group twice for a transform that reorders) plus 8 MiB per decoding thread. With
    `lazy`, matrices come as lazy tensors, to be used before the next is asked for: then only the pieces in flight are
    in memory. `progress` gets the bytes of the tensors that are done.
    Raises as `check_streamable` and `read_values` do.
    """
    check_streamable(plan, checkpoint)
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="ggufmap") as pool:
        for assignment in filter(wanted, plan.assignments):
            if lazy is not None and _can_be_lazy(assignment, checkpoint):
                yield from _lazy_values(assignment, checkpoint, dtype, pool, lazy)
            else:
                yield from _values(assignment, checkpoint, dtype, pool)
            for constant in assignment.constants:
                yield constant.name, torch.full(constant.shape, constant.value, dtype=torch.float32)
            if progress is not None:
                progress(sum(checkpoint.tensors[name].nbytes for name in assignment.tensors))


@dataclass(slots=True)
class Lazy:
    """Ask for lazy tensors; afterwards, what they did."""

    counter: Counter = field(default_factory=Counter)
    meter: Meter = field(default_factory=Meter)


def _can_be_lazy(assignment: Assignment, checkpoint: Checkpoint) -> bool:
    """Matrices whose transform works on groups of rows; the rest is small, or needs the whole."""
    kind = KINDS[assignment.transform.name]
    stored = checkpoint.tensors[assignment.tensors[0]]
    return len(assignment.tensors) == 1 and len(stored.shape) >= 2 and (kind.cuts_rows or kind.row_group is not None)


def _lazy_values(
    assignment: Assignment, checkpoint: Checkpoint, dtype: torch.dtype, pool: ThreadPoolExecutor, lazy: Lazy
) -> Iterator[tuple[str, torch.Tensor]]:
    """The checkpoint tensors of one assignment, unread."""
    stored, transform = checkpoint.tensors[assignment.tensors[0]], assignment.transform
    kind = KINDS[transform.name]
    group = 1 if kind.row_group is None else kind.row_group((stored.rows, stored.columns), transform.argument or 0)
    through = transform if kind.row_group is not None and group > 1 else None
    first = 0
    for name, shape in zip(assignment.checkpoint, assignment.shapes, strict=True):
        count = math.prod(shape) // stored.columns
        source = TensorSource(checkpoint, stored, first, count, dtype, lazy.meter, through, group)
        yield name, lazy_tensor(source, shape, pool, lazy.counter)
        first += count


def _values(
    assignment: Assignment, checkpoint: Checkpoint, dtype: torch.dtype, pool: ThreadPoolExecutor
) -> Iterator[tuple[str, torch.Tensor]]:
    """The checkpoint tensors of one assignment; where the transform cuts rows, each is read by itself."""
    stored = [checkpoint.tensors[name] for name in assignment.tensors]
    kind = KINDS[assignment.transform.name]
    if not kind.cuts_rows:
        exact = torch.float32 if kind.computes else dtype
        values = apply(assignment.transform, [read_values(checkpoint, tensor, exact, pool) for tensor in stored])
        yield from zip(assignment.checkpoint, values, strict=True)
        return
    first = 0
    for name, shape in zip(assignment.checkpoint, assignment.shapes, strict=True):
        count = math.prod(shape[:-1])
        yield name, read_values(checkpoint, stored[0], dtype, pool, slice(first, first + count)).view(shape)
        first += count
