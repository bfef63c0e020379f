"""The ledger: which elements of which parameter a model's weight loaders write, seen where torch dispatches the writes.

It works the same on meta tensors (a trace) and on real ones (a load), for every loader of every vLLM version, because
whatever a loader does ends in an in-place operation on a view of the parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MAX_RUNS = 1 << 23  # pieces of one parameter that are told apart: 128 MiB of positions
_Before = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]
# Operations that write some elements of the tensor they are given, chosen by values: no view says which.
_BY_INDEX = ("index", "scatter", "masked", "put_", "_index_put_impl")


@dataclass(frozen=True, slots=True)
class Region:
    """A view of a parameter's storage that was written; `copied` unless it was filled with a constant."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    copied: bool

    @property
    def elements(self) -> int:
        """Number of elements in the view."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    def axes(self) -> tuple[int, list[tuple[int, int]]]:
        """The view as runs of consecutive storage elements: their length, and (stride, size) of the axes around."""
        length = 1
        outer: list[tuple[int, int]] = []
        for stride, size in sorted(zip(self.stride, self.shape, strict=True)):
            if stride == length and not outer:
                length *= size
            elif size != 1:
                outer.append((stride, size))
        return length, outer


@dataclass(frozen=True, slots=True)
class _Effect:
    """What an operation does: the positions of the arguments that it writes to, and whether it only makes views."""

    written: tuple[int, ...]
    view: bool


class Ledger(TorchDispatchMode):  # type: ignore[misc] # torch is untyped here
    """Records writes to `parameters` while active.

    `before` is called with every operation that is more than a view, and its arguments, ahead of it.
    With `provenance`, also which named source tensor each write took its values from: sources are announced with
    `source`, and every tensor computed from a source counts as that source.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], provenance: bool = False, before: _Before | None = None
    ) -> None:
        super().__init__()
        self._before = before
        self._parameters = dict(parameters)
        self._owner = {_storage(tensor): name for name, tensor in self._parameters.items()}
        self._original = {name: _storage(tensor) for name, tensor in self._parameters.items()}
        self._elements = {name: tensor.numel() for name, tensor in self._parameters.items()}
        self._provenance = provenance
        self._origin: dict[int, str] = {}
        # Storages are told apart by address: keeping every tracked tensor alive keeps the addresses unique.
        self._alive: list[torch.Tensor] = []
        self._computed: dict[int, str] = {}
        self._computed_alive: dict[str, list[torch.Tensor]] = defaultdict(list)
        self._effects: dict[Any, _Effect] = {}
        self._unclear: dict[str, str] = {}
        self.regions: dict[str, list[Region]] = defaultdict(list)
        self.sources: dict[str, list[str]] = defaultdict(list)
        """Source name -> parameters written from it, in order, without repeats."""
        self.widths: dict[str, int] = {}
        """Source name -> length of the last axis of the view that took it."""
        self.rewritten: set[str] = set()
        """Sources that a parameter was not written from directly, but from something computed of them."""
        self._announced: set[int] = set()

    def source(self, name: str, tensor: torch.Tensor) -> None:
        """Announce a named source tensor."""
        self._announced.add(_storage(tensor))
        self._track(name, tensor)

    def origin(self, tensor: object) -> str | None:
        """The source that a tensor's values come from, if any."""
        return self._origin.get(_storage(tensor)) if isinstance(tensor, torch.Tensor) else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and torch's guard against it costs a tenth of a trace

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        effect = self._effect(func)
        if effect.view and not effect.written:  # has the storage that is known already
            return func(*args, **kwargs)
        if self._before is not None:
            self._before(func, args, kwargs)
        out = func(*args, **kwargs)
        if effect.written:
            for index in effect.written:
                if index < len(args) and isinstance(args[index], torch.Tensor):
                    self._record(func, args[index], args)
        else:
            self._compute(args, out)
            if self._provenance:
                self._propagate(args, out)
        return out

    def _effect(self, func: Any) -> _Effect:
        """What `func` does, from its schema."""
        found = self._effects.get(func)
        if found is None:
            arguments, returns = func._schema.arguments, func._schema.returns
            written = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
            found = _Effect(written, view=bool(returns) and all(r.alias_info is not None for r in returns))
            self._effects[func] = found
        return found

    def _record(self, func: Any, view: torch.Tensor, args: tuple[Any, ...]) -> None:
        name = self._owner.get(_storage(view))
        inputs = [a for a in args if isinstance(a, torch.Tensor) and a is not view]
        origins = {origin for a in inputs if (origin := self._origin.get(_storage(a))) is not None}
        if name is None:
            if self._provenance and origins:  # a scratch tensor filled from a source
                self._track(min(origins), view)
            return
        if inputs and all(self._computed.get(_storage(a)) == name for a in inputs):
            for computed in self._computed_alive.pop(name):
                del self._computed[_storage(computed)]
            return  # its own values again, computed over (vLLM's composed_weight_loader): no second source
        if func.name().split("::")[-1].startswith(_BY_INDEX):
            self._unclear[name] = func.name()
        region = Region(view.storage_offset(), tuple(view.shape), tuple(view.stride()), copied=bool(inputs))
        self.regions[name].append(region)
        if self._provenance:
            computed = (a for a in inputs if _storage(a) not in self._announced)
            self.rewritten.update(o for a in computed if (o := self._origin.get(_storage(a))) is not None)
        for origin in origins:
            if name not in self.sources[origin]:
                self.sources[origin].append(name)
            if region.shape:
                self.widths[origin] = region.shape[-1]

    def _compute(self, args: tuple[Any, ...], out: Any) -> None:
        """Remember what is computed from one parameter alone."""
        names = {self._owner.get(key, self._computed.get(key)) for key in map(_storage, _flatten(args))}
        name = names.pop() if len(names) == 1 else None
        if name is None:
            return
        for tensor in _flatten((out,)):
            if (key := _storage(tensor)) not in self._owner and key not in self._computed:
                self._computed[key] = name
                self._computed_alive[name].append(tensor)

    def _propagate(self, args: tuple[Any, ...], out: Any) -> None:
        origins = {origin for a in _flatten(args) if (origin := self._origin.get(_storage(a))) is not None}
        if not origins:
            return
        for tensor in _flatten((out,)):
            if _storage(tensor) not in self._origin:
                self._track(min(origins), tensor)

    def _track(self, name: str, tensor: torch.Tensor) -> None:
        self._origin[_storage(tensor)] = name
        self._alive.append(tensor)

    def problem(self, name: str, current: torch.Tensor | None) -> tuple[int, str | None]:
        """How many elements of parameter `name` were written, and what is wrong (None: each exactly once).

        `current` is the parameter now; a loader may have put another in its place, as online quantisation does. What
        it wrote before must be complete all the same; where it wrote nothing, it knows what it put there.
        """
        replaced = current is None or _storage(current) != self._original[name]
        if replaced and name not in self.regions:
            return 0 if current is None else current.numel(), None
        if name in self._unclear:
            return 0, f"written by {self._unclear[name]}, which does not say where"
        written, wrong = coverage(self.regions.get(name, []), self._elements[name])
        return (written if current is None or wrong else current.numel()), wrong


def coverage(regions: list[Region], elements: int) -> tuple[int, str | None]:
    """How many of `elements` the regions write, and the problem if not each exactly once.

    Constant fills (padding) count where nothing is copied, and never as a second write.
    """
    copied = [region for region in regions if region.copied]
    if not copied:
        return 0, "only filled with a constant" if regions else "nothing is written"
    try:
        written = _union(copied)
        if written < sum(region.elements for region in copied):
            return written, "some elements are written more than once"
        if written < elements and len(copied) < len(regions):
            written = _union(regions)
    except _TooManyRunsError as e:
        return 0, f"written in {e} pieces, too many to tell apart"
    return written, None if written == elements else f"{elements - written} of {elements} elements are not written"


class _TooManyRunsError(Exception):
    pass


def _union(regions: list[Region]) -> int:
    """Number of storage elements that one or more of the regions cover."""
    views = [(region, *region.axes()) for region in regions if region.elements]
    total = sum(region.elements // length for region, length, _ in views)
    if total > _MAX_RUNS:
        raise _TooManyRunsError(total)
    starts, ends = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    done = 0
    for region, length, outer in views:
        first = np.full(1, region.offset, dtype=np.int64)
        for stride, size in outer:
            first = (first[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        starts[done : done + len(first)], ends[done : done + len(first)] = first, first + length
        done += len(first)
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    # Where the furthest end so far lies beyond a start, that much is covered already.
    reached = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
    return int(np.maximum(ends - np.maximum(starts, reached), 0).sum())


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _flatten(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flatten(value)
