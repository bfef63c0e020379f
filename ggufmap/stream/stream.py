"""The stream: a Plan and an open checkpoint in, (checkpoint name, tensor) pairs out, a few tensors in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import MappingError
from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Assignment
from ggufmap.mapping.transforms import KINDS
from ggufmap.stream.dequantise import read_values, require_decodable
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
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every checkpoint tensor of the plan's `wanted` assignments, in file order, on the CPU.

    Quantised tensors come in `dtype`, plain ones in the type they are stored in. Peak memory is one checkpoint tensor
    (one expert of a stack; the whole group twice for a transform that reorders) plus 8 MiB per decoding thread.
    `progress` gets the bytes read.
    Raises as `check_streamable` and `read_values` do.
    """
    check_streamable(plan, checkpoint)
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="ggufmap") as pool:
        for assignment in filter(wanted, plan.assignments):
            yield from _values(assignment, checkpoint, dtype, pool)
            if progress is not None:
                progress(sum(checkpoint.tensors[name].nbytes for name in assignment.tensors))


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
