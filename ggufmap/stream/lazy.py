"""Lazy tensors: a checkpoint tensor that vLLM's weight loaders may slice before a byte of it is read.

Views (`narrow`, slices, `chunk`, `unbind`, `view`, `t`) stay lazy; `copy_` into a parameter reads and decodes exactly
the rows and columns of the view, straight into the destination, a piece at a time. So a rank reads its own bytes, and
peak memory is the pieces in flight, with no code of ours per kind of layer. Anything else materialises, and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch

PIECE_VALUES = 1 << 20
"""Values decoded at a time and thread: 4 MiB of float32, which stays in the cache until it is converted."""


class Source(Protocol):
    """A matrix that can be read by rows and columns. `group` rows (and `block` columns) are read together."""

    shape: tuple[int, int]
    dtype: torch.dtype
    group: int
    block: int

    def read(self, rows: slice, columns: slice) -> torch.Tensor:
        """The values of these rows and columns; both on group and block edges, or at the end."""
        ...


@dataclass(slots=True)
class Counter:
    """What lazy tensors did: values copied straight into a destination, views that had to be materialised."""

    copied: int = 0
    materialised: int = 0


@dataclass(frozen=True, slots=True)
class _Window:
    """The rows and columns of the source that hold a view, and the view's place in them."""

    rows: slice
    columns: slice
    offset: int
    stride: tuple[int, ...]


class LazyTensor(torch.Tensor):  # type: ignore[misc] # torch is untyped here
    """A view of a `Source`. `layout` is a meta tensor with the same shape, strides and offset as the dense view."""

    source: Source
    layout_: torch.Tensor
    pool: ThreadPoolExecutor | None
    counter: Counter

    @staticmethod
    def __new__(
        cls: type, source: Source, layout: torch.Tensor, pool: ThreadPoolExecutor | None, counter: Counter
    ) -> LazyTensor:
        """A lazy tensor on the CPU with the layout's shape and the source's dtype."""
        made: LazyTensor = torch.Tensor._make_wrapper_subclass(
            cls, layout.shape, strides=layout.stride(), dtype=source.dtype, device="cpu"
        )
        made.source, made.layout_, made.pool, made.counter = source, layout, pool, counter
        return made

    def __repr__(self, **_: Any) -> str:
        return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], LazyTensor):
            args[1].copy_into(args[0])
            return args[0]
        if func in _VIEWS and isinstance(args[0], LazyTensor):
            lazy = args[0]
            made = func(lazy.layout_, *args[1:], **kwargs)
            return lazy._wrap(made)
        if func is torch.ops.aten._to_copy.default and _same_place(args[0], kwargs):
            return args[0]
        return func(*_materialised(args), **{key: _materialised((value,))[0] for key, value in kwargs.items()})

    def _wrap(self, layout: Any) -> Any:
        if isinstance(layout, (list, tuple)):
            return type(layout)(self._wrap(part) for part in layout)
        return LazyTensor(self.source, layout, self.pool, self.counter)

    def materialise(self) -> torch.Tensor:
        """The values of the view, dense."""
        self.counter.materialised += 1
        out = torch.empty(tuple(self.shape), dtype=self.dtype)
        self.copy_into(out)
        return out

    def copy_into(self, destination: torch.Tensor) -> None:
        """Read the view's values into `destination` (same shape, any dtype and strides), by pieces on the pool."""
        if tuple(destination.shape) != tuple(self.shape):
            destination.copy_(self.materialise())
            return
        pieces = list(_pieces(self.layout_, destination))

        def fill(piece: tuple[torch.Tensor, torch.Tensor]) -> None:
            layout, part = piece
            window = _window(layout, self.source)
            values = self.source.read(window.rows, window.columns)
            part.copy_(values.as_strided(layout.shape, window.stride, values.storage_offset() + window.offset))

        with torch.no_grad():
            if self.pool is None or len(pieces) == 1:
                for piece in pieces:
                    fill(piece)
            else:
                for _ in self.pool.map(fill, pieces):
                    pass
        self.counter.copied += self.layout_.numel()


def lazy_tensor(
    source: Source, shape: Sequence[int], pool: ThreadPoolExecutor | None = None, counter: Counter | None = None
) -> LazyTensor:
    """A lazy tensor over all of `source`, seen with `shape` (the same number of values, rows whole)."""
    layout = torch.empty(tuple(shape), dtype=source.dtype, device="meta")
    return LazyTensor(source, layout, pool, counter or Counter())


def _pieces(layout: torch.Tensor, destination: torch.Tensor) -> Any:
    """Cut a view and its destination along the first axis into pieces of about PIECE_VALUES values."""
    rows = layout.shape[0] if layout.dim() else 1
    if layout.numel() <= PIECE_VALUES or layout.dim() == 0:
        yield layout, destination
        return
    step = max(1, PIECE_VALUES * rows // layout.numel())
    for start in range(0, rows, step):
        length = min(step, rows - start)
        yield layout.narrow(0, start, length), destination.narrow(0, start, length)


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
    return _Window(slice(top, bottom), slice(left, right), offset, strides)


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
