"""Lazy tensors: a checkpoint tensor that vLLM's weight loaders may slice before a byte of it is read.

Views (`narrow`, slices, `chunk`, `unbind`, `view`, `t`) stay lazy; `copy_` into a parameter reads and decodes exactly
the rows and columns of the view, straight into the destination, a piece at a time. So a rank reads its own bytes, and
peak memory is the pieces in flight, with no code of ours per kind of layer. Anything else materialises, and counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from ggufmap.stream.lanes import Put
from ggufmap.stream.workers import VALUE_BYTES, Buffer, Workers


class Source(Protocol):
    """A matrix that can be read by rows and columns. `group` rows (and `block` columns) are read together.

    Its values are `dtype` for whoever looks at the tensor; whole rows take `value_bytes` of scratch memory a value to
    read, or somewhat more where rows go through a transform. `name` is for messages.
    """

    name: str
    shape: tuple[int, int]
    dtype: torch.dtype
    group: int
    block: int
    value_bytes: int

    def fills(self, dtype: torch.dtype) -> bool:
        """Whether `read` can write values of this dtype straight into a destination."""
        ...

    def need(self, rows: slice, columns: slice) -> int:
        """Bytes of scratch memory that `read` works in, and those of what it returns."""
        ...

    def read(
        self, rows: slice, columns: slice, scratch: Buffer, out: torch.Tensor | None = None, put: Put | None = None
    ) -> torch.Tensor:
        """The values of these rows and columns, both on group and block edges, or at the end: shape (rows, columns).

        `out` itself if it is given (contiguous, on the CPU, of a dtype that `fills`) and could be filled. With `put`,
        the stored bytes go through it to another device, and are decoded there.
        """
        ...


@dataclass(slots=True)
class Counter:
    """What lazy tensors did: values copied straight into a destination, views that had to be materialised.

    `seconds` went by in the copies, over all threads.
    """

    copied: int = 0
    materialised: int = 0
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, seconds: float) -> None:
        """Count a copy's time."""
        with self._lock:
            self.seconds += seconds


@dataclass(frozen=True, slots=True)
class _Window:
    """The rows and columns of the source that hold a view, and its place in them: `whole` if it is all, in order."""

    rows: slice
    columns: slice
    offset: int
    stride: tuple[int, ...]
    whole: bool


class LazyTensor(torch.Tensor):  # type: ignore[misc] # torch is untyped here
    """A view of a `Source`. `layout` is a meta tensor with the same shape, strides and offset as the dense view."""

    source: Source
    layout_: torch.Tensor
    workers: Workers
    counter: Counter

    @staticmethod
    def __new__(cls: type, source: Source, layout: torch.Tensor, workers: Workers, counter: Counter) -> LazyTensor:
        """A lazy tensor on the CPU with the layout's shape and the source's dtype."""
        made: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls, layout.shape, strides=layout.stride(), dtype=source.dtype, device="cpu"
        )
        made.source, made.layout_, made.workers, made.counter = source, layout, workers, counter
        return made

    def __repr__(self, **_: Any) -> str:
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.copy_.default and not isinstance(args[0], LazyTensor):
            args[1].copy_into(args[0])
            return args[0]
        if isinstance(args[0], LazyTensor):
            lazy = args[0]
            if func is _aten.clone.default and kwargs.get("memory_format") is torch.contiguous_format:
                return lazy._wrap(lazy.layout_)  # `.contiguous()`: for speed elsewhere, for nothing here
            if func in _VIEWS:
                try:
                    return lazy._wrap(func(lazy.layout_, *args[1:], **kwargs))
                except RuntimeError:  # a view that only a contiguous tensor has
                    pass
            if any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments[:1]):
                raise NotImplementedError(f"{func} on {lazy.source.name}: a lazy tensor cannot be written to")
        if func is _aten._to_copy.default and _same_place(args[0], kwargs):
            return args[0]
        return func(*_materialised(args), **{key: _materialised((value,))[0] for key, value in kwargs.items()})

    def _wrap(self, layout: Any) -> Any:
        if isinstance(layout, (list, tuple)):
            return type(layout)(self._wrap(part) for part in layout)
        return LazyTensor(self.source, layout, self.workers, self.counter)

    def materialise(self) -> torch.Tensor:
        """The values of the view, dense. They count as held until the stream goes on to the next tensor."""
        self.counter.materialised += 1
        self.workers.keep(self.numel() * self.dtype.itemsize, f"tensor {self.source.name}")
        out = torch.empty(tuple(self.shape), dtype=self.dtype, device="cpu")
        if 0 < self.numel() <= self.workers.piece:  # not behind what the threads have to do
            self._fill(None, (self.layout_, out))
        else:
            self.copy_into(out)
            self.workers.drain()
        return out

    def copy_into(self, destination: torch.Tensor) -> None:
        """Read the view's values into `destination` (same shape, any dtype and strides), by pieces on the threads."""
        if tuple(destination.shape) != tuple(self.shape):
            destination.copy_(self.materialise())
            return
        if self.numel() == 0 or destination.is_meta:  # vLLM's online quantisation counts a copy there before it loads
            return
        # Of columns that are cut, more may have to be read than is wanted.
        value_bytes = self.source.value_bytes if _has_whole_rows(self.layout_, self.source) else VALUE_BYTES
        limit = self.workers.piece_of(self.numel(), value_bytes)
        pieces = list(_pieces(self.layout_, destination, self.source, limit))
        work = partial(self._fill, self.workers.lanes.mark(destination.device))
        self.workers.each(work, pieces, large=not self._fits(pieces[0][0]))
        self.counter.copied += self.layout_.numel()

    def _fits(self, layout: torch.Tensor) -> bool:
        """Whether a piece needs no more memory than its thread's buffer, as whole rows never do."""
        if self.source.group == 1 and _has_whole_rows(layout, self.source):
            return True
        window = _window(layout, self.source)
        return self.workers.fits(self.source.need(window.rows, window.columns))

    def _fill(self, mark: Any, piece: tuple[torch.Tensor, torch.Tensor]) -> None:
        layout, part = piece
        window = _window(layout, self.source)
        out = _straight(part, window, self.source)
        need = self.source.need(window.rows, window.columns)
        self.workers.pages.before(part)
        with (
            torch.no_grad(),
            self.workers.scratch(need, f"tensor {self.source.name}") as scratch,
            self.workers.lanes.enter(part.device, mark) as put,
        ):
            values = self.source.read(window.rows, window.columns, scratch, out if put is None else None, put)
            if values is not out:
                started = time.perf_counter()
                if not (window.whole and values.shape == layout.shape):
                    values = values.as_strided(layout.shape, window.stride, values.storage_offset() + window.offset)
                part.copy_(values)
                self.counter.took(time.perf_counter() - started)


class Settling:
    """Lets copies from lazy tensors go on in the background, so that nothing else notices.

    `before` is to be told of every operation: one that touches memory which such a copy writes to, views apart, first
    waits for all of them.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._written: set[int] = set()

    def before(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """`func` is about to be called with these."""
        if func is _aten.copy_.default and isinstance(args[1], LazyTensor):
            self._written.add(_storage(args[0]))
        elif self._written and not func.is_view and self._touches((args, kwargs)):
            self._workers.drain()
            self._written.clear()

    def _touches(self, values: Any) -> bool:
        """Whether any of the tensors has values in memory that is written to."""
        return any(tensor.numel() and _storage(tensor) in self._written for tensor in _tensors(values))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _storage(tensor: torch.Tensor) -> int:
    """What tells memory apart: 0 for lazy tensors, which have none."""
    return 0 if isinstance(tensor, LazyTensor) else int(tensor.untyped_storage()._cdata)


def unseen() -> AbstractContextManager[Any]:
    """No mode sees what torch does in the block: for what concerns nobody's memory, and would be slower seen."""
    guard: AbstractContextManager[Any] = torch._C._DisableTorchDispatch()
    return guard


def lazy_tensor(
    source: Source, shape: Sequence[int], workers: Workers | None = None, counter: Counter | None = None
) -> LazyTensor:
    """A lazy tensor over all of `source`, seen with `shape` (the same number of values, rows whole)."""
    return lazy_tensors(source, [shape], workers or Workers(threads=1), counter or Counter())[0]


def lazy_tensors(
    source: Source, shapes: Sequence[Sequence[int]], workers: Workers, counter: Counter
) -> list[LazyTensor]:
    """Lazy tensors over the rows of `source`, one behind another, all of them; each of whole rows."""
    rows = [math.prod(shape) // source.shape[1] for shape in shapes]
    with unseen():
        parts = torch.empty(source.shape, dtype=source.dtype, device="meta").split(rows)
        layouts = [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]
        return [LazyTensor(source, layout, workers, counter) for layout in layouts]


def in_parts(tensor: torch.Tensor, values: int) -> Iterator[torch.Tensor]:
    """A tensor of the stream cut along its first axis into parts of about `values` values, to be taken one by one.

    Of a lazy tensor no group of rows is read twice, so that a part may be larger.
    """
    if not tensor.numel():
        return
    matrix = tensor if tensor.dim() > 1 else tensor.reshape(1, -1)
    width = matrix.numel() // matrix.shape[0]
    together = max(1, tensor.source.group * tensor.source.shape[1] // width) if isinstance(tensor, LazyTensor) else 1
    yield from matrix.split(max(1, values // width // together) * together)


def _pieces(
    layout: torch.Tensor, destination: torch.Tensor, source: Source, limit: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut a view and its destination into pieces of about `limit` values, by the source's rows, along its groups."""
    columns = source.shape[1]
    axes = [axis for axis, size in enumerate(layout.shape) if size > 1 and layout.stride(axis) >= columns]
    if layout.numel() <= limit or not axes:
        yield layout, destination
        return
    axis = max(axes, key=layout.stride)
    size, rows = layout.shape[axis], layout.stride(axis) // columns
    together = -(-source.group // rows)  # places of the axis that share a group
    step = max(1, limit * size // layout.numel() // together) * together
    for start in range(0, size, step):
        length = min(step, size - start)
        part = layout.narrow(axis, start, length), destination.narrow(axis, start, length)
        if step < size:
            yield from _pieces(*part, source, limit)
        else:
            yield part


def _has_whole_rows(layout: torch.Tensor, source: Source) -> bool:
    return bool(layout.shape[-1:] == source.shape[1:])


def _straight(part: torch.Tensor, window: _Window, source: Source) -> torch.Tensor | None:
    """The destination as the matrix that `read` can fill itself, where the view is the window."""
    if not (part.device.type == "cpu" and part.is_contiguous() and window.whole and source.fills(part.dtype)):
        return None
    size = (window.rows.stop - window.rows.start, window.columns.stop - window.columns.start)
    return part.detach().as_subclass(torch.Tensor).view(size)


def _window(layout: torch.Tensor, source: Source) -> _Window:
    """The smallest part of the source, on group and block edges, that holds the view."""
    rows, columns = source.shape
    first = layout.storage_offset()
    sizes = [(size, stride) for size, stride in zip(layout.shape, layout.stride(), strict=True) if size > 1]
    last = first + sum((size - 1) * stride for size, stride in sizes)
    top, bottom = first // columns, last // columns + 1
    left, right = _columns(first, sizes, columns)
    top = top // source.group * source.group
    bottom = min(-(-bottom // source.group) * source.group, rows)
    left = left // source.block * source.block
    right = min(-(-right // source.block) * source.block, columns)
    width = right - left
    strides = tuple(_narrowed(stride, columns, width) for stride in layout.stride())
    offset = (first // columns - top) * width + first % columns - left
    whole = layout.numel() == (bottom - top) * width and _in_order(layout.shape, strides)
    return _Window(slice(top, bottom), slice(left, right), offset, strides, whole)


def _columns(first: int, sizes: list[tuple[int, int]], columns: int) -> tuple[int, int]:
    """The column range of a view whose strides are whole rows or stay within one; else all columns."""
    within = [(size, stride) for size, stride in sizes if stride < columns]
    across = [stride for _, stride in sizes if stride >= columns]
    left = first % columns
    right = left + sum((size - 1) * stride for size, stride in within) + 1
    if right > columns or any(stride % columns for stride in across):
        return 0, columns
    return left, right


def _narrowed(stride: int, columns: int, width: int) -> int:
    """A stride over rows of `columns` values, over rows of `width`."""
    return stride // columns * width + stride % columns


def _in_order(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a view with these strides takes its values one after another."""
    length = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != length:
            return False
        length *= size
    return True


def _same_place(tensor: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a `.to(...)` changes nothing that a later copy would not do as well."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    return (device is None or torch.device(device).type == "cpu") and (dtype is None or dtype == tensor.dtype)


def _materialised(values: Sequence[Any]) -> list[Any]:
    return [
        value.materialise()
        if isinstance(value, LazyTensor)
        else type(value)(_materialised(value))
        if isinstance(value, (list, tuple))
        else value
        for value in values
    ]


_aten = torch.ops.aten
_VIEWS: frozenset[Callable[..., Any]] = frozenset(
    (
        _aten.alias.default,
        _aten.detach.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.split.Tensor,
        _aten.split_with_sizes.default,
        _aten.squeeze.default,
        _aten.squeeze.dim,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unbind.int,
        _aten.unsqueeze.default,
        _aten.view.default,
    )
)
