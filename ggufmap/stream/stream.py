"""The stream: a Plan and an open checkpoint in, (checkpoint name, tensor) pairs out, a few tensors in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from ggufmap.checkpoint import Checkpoint, Tensor
from ggufmap.errors import MappingError
from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Assignment
from ggufmap.mapping.transforms import KINDS
from ggufmap.stream.ahead import ReadAhead
from ggufmap.stream.dequantise import require_decodable, value_dtype
from ggufmap.stream.lazy import Counter, LazyTensor, lazy_tensor, lazy_tensors, unseen
from ggufmap.stream.sources import Meter, StackSource, TensorSource, read_values
from ggufmap.stream.transforms import apply
from ggufmap.stream.workers import Workers

_AHEAD = 256 << 20  # bytes asked of the disk before they are needed, if the budget is large enough


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
    workers: Workers | None = None,
    *,
    forget: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every checkpoint tensor of the plan's `wanted` assignments, in file order, on the CPU.

    Quantised tensors come in `dtype`, plain ones in the type they are stored in. With `lazy`, matrices come as lazy
    tensors, to be used before the next is asked for: then only the pieces in flight are in memory. Otherwise it is one
    checkpoint tensor at a time (one expert of a stack). Either way it is accounted against the budget of `workers`
    (1 GiB by default). `progress` gets the bytes that are done. With `forget`, they leave the page cache, too.
    Raises as `check_streamable` and `read_values` do; UsageError when a tensor cannot be read within the budget,
    FileError at the end when a file was changed meanwhile.
    """
    check_streamable(plan, checkpoint)
    assignments = [assignment for assignment in plan.assignments if wanted(assignment)]
    tensors = [checkpoint.tensors[name] for assignment in assignments for name in assignment.tensors]
    with ExitStack() as stack:
        if workers is None:
            workers = stack.enter_context(Workers())
        distance = min(_AHEAD, workers.budget.limit // 4)
        ahead = stack.enter_context(ReadAhead(checkpoint, tensors, distance, forget=forget))
        reading = _Reading(checkpoint, dtype, workers, lazy or Lazy())
        given: deque[tuple[int, int]] = deque()  # what must be done for how many bytes to be
        for assignment in assignments:
            for name, tensor, nbytes in reading.tensors(assignment):
                yield name, tensor if lazy is not None else _dense(tensor)
                del tensor
                workers.budget.release()
                ahead.advance(nbytes)
                given.append((workers.done + len(workers.pending), nbytes))
                _tell(given, workers.done, ahead, progress)
        workers.drain()
        _tell(given, workers.done, ahead, progress)
    for split in checkpoint.splits:
        split.source.require_unchanged()


def _tell(given: deque[tuple[int, int]], done: int, ahead: ReadAhead, progress: Callable[[int], None] | None) -> None:
    while given and given[0][0] <= done:
        _, nbytes = given.popleft()
        ahead.leave(nbytes)
        if progress is not None:
            progress(nbytes)


@dataclass(slots=True)
class Lazy:
    """Ask for lazy tensors; afterwards, what they did."""

    counter: Counter = field(default_factory=Counter)
    meter: Meter = field(default_factory=Meter)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What every assignment is read with."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    workers: Workers
    lazy: Lazy

    def tensors(self, assignment: Assignment) -> Iterator[tuple[str, torch.Tensor, int]]:
        """An assignment's checkpoint tensors, lazy where they can be, and how many stored bytes each stands for."""
        stored = [self.checkpoint.tensors[name] for name in assignment.tensors]
        kind = KINDS[assignment.transform.name]
        if len(stored) == 1 and len(stored[0].shape) >= 2 and (kind.cuts_rows or kind.row_group is not None):
            yield from self._rows(assignment, stored[0])
        elif kind.stacks and all(len(tensor.shape) == 3 for tensor in stored):
            yield from self._stack(assignment, stored)
        else:
            yield from self._whole(assignment, stored)
        for constant in assignment.constants:
            yield constant.name, torch.full(constant.shape, constant.value, dtype=torch.float32), 0

    def _rows(self, assignment: Assignment, stored: Tensor) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Runs of the one input's rows: all of them, or an expert each."""
        transform = assignment.transform
        row_group = KINDS[transform.name].row_group
        group = 1 if row_group is None else row_group((stored.rows, stored.columns), transform.argument or 0)
        source = TensorSource(
            self.checkpoint, stored, self.dtype, self.lazy.meter, transform if group > 1 else None, group
        )
        tensors = lazy_tensors(source, assignment.shapes, self.workers, self.lazy.counter)
        for name, tensor in zip(assignment.checkpoint, tensors, strict=True):
            yield name, tensor, tensor.numel() // stored.columns * stored.row_bytes

    def _stack(self, assignment: Assignment, stored: list[Tensor]) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Stacks of experts that are put together expert by expert."""
        (name,), (shape,) = assignment.checkpoint, assignment.shapes
        source = StackSource(self.checkpoint, stored, assignment.transform, shape, self.dtype, self.lazy.meter)
        yield name, lazy_tensor(source, shape, self.workers, self.lazy.counter), sum(t.nbytes for t in stored)

    def _whole(self, assignment: Assignment, stored: list[Tensor]) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Vectors, and what must be decoded as a whole before it is put together."""
        exact = torch.float32 if KINDS[assignment.transform.name].computes else self.dtype
        sizes = [tensor.elements * (value_dtype(tensor.type) or exact).itemsize for tensor in stored]
        self.workers.keep(sum(sizes), f"tensor {', '.join(assignment.tensors)}")  # what the transform makes
        with unseen():
            inputs = [read_values(self.checkpoint, tensor, exact, self.workers, self.lazy.meter) for tensor in stored]
            outputs = list(zip(assignment.checkpoint, apply(assignment.transform, inputs), strict=True))
            del inputs
        for index, (name, values) in enumerate(outputs):
            yield name, values, sum(t.nbytes for t in stored) if index == 0 else 0


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.materialise() if isinstance(tensor, LazyTensor) else tensor
