"""The stream: a Plan and an open checkpoint in, (checkpoint name, tensor) pairs out, a few tensors in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import MappingError
from ggufmap.mapping import Plan
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
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every checkpoint tensor of `plan`, in file order, on the CPU.

    Quantised tensors come in `dtype`, plain ones in the type they are stored in. Peak memory is one assignment's
    values (twice for a transform that reorders) plus 8 MiB per decoding thread. `progress` gets the bytes read.
    Raises as `check_streamable` and `read_values` do.
    """
    check_streamable(plan, checkpoint)
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="ggufmap") as pool:
        for assignment in plan.assignments:
            stored = [checkpoint.tensors[name] for name in assignment.tensors]
            values = apply(assignment.transform, [read_values(checkpoint, t, dtype, pool) for t in stored])
            yield from zip(assignment.checkpoint, values, strict=True)
            del values
            if progress is not None:
                progress(sum(tensor.nbytes for tensor in stored))
