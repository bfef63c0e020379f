"""The ledger: which elements of which parameter a model's weight loaders write, seen where torch dispatches the writes.

It works the same on meta tensors (a trace) and on real ones (a load), for every loader of every vLLM version, because
whatever a loader does ends in an in-place operation on a view of the parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PAIRWISE_LIMIT = 2048


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

    def interval(self) -> tuple[int, int] | None:
        """(start, end) in storage elements when the view is one contiguous run, else None."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return None
            expected *= size
        return self.offset, self.offset + self.elements


class Ledger(TorchDispatchMode):  # type: ignore[misc] # torch is untyped here
    """Records writes to `parameters` while active.

    With `provenance`, also which named source tensor each write took its values from: sources are announced with
    `source`, and every tensor computed from a source counts as that source.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], provenance: bool = False) -> None:
        super().__init__()
        self._parameters = dict(parameters)
        self._owner = {_storage(tensor): name for name, tensor in self._parameters.items()}
        self._original = {name: _storage(tensor) for name, tensor in self._parameters.items()}
        self._provenance = provenance
        self._origin: dict[int, str] = {}
        # Storages are told apart by address: keeping every tracked tensor alive keeps the addresses unique.
        self._alive: list[torch.Tensor] = []
        self._written_arguments: dict[Any, tuple[int, ...]] = {}
        self.regions: dict[str, list[Region]] = defaultdict(list)
        self.sources: dict[str, list[str]] = defaultdict(list)
        """Source name -> parameters written from it, in order, without repeats."""

    def source(self, name: str, tensor: torch.Tensor) -> None:
        """Announce a named source tensor."""
        self._track(name, tensor)

    def origin(self, tensor: object) -> str | None:
        """The source that a tensor's values come from, if any."""
        return self._origin.get(_storage(tensor)) if isinstance(tensor, torch.Tensor) else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        written = self._written(func)
        if written:
            for index in written:
                if index < len(args) and isinstance(args[index], torch.Tensor):
                    self._record(args[index], args)
        elif self._provenance:
            self._propagate(args, out)
        return out

    def _written(self, func: Any) -> tuple[int, ...]:
        """Positions of the arguments that `func` writes to."""
        found = self._written_arguments.get(func)
        if found is None:
            arguments = func._schema.arguments
            found = tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
            self._written_arguments[func] = found
        return found

    def _record(self, view: torch.Tensor, args: tuple[Any, ...]) -> None:
        name = self._owner.get(_storage(view))
        inputs = [a for a in args if isinstance(a, torch.Tensor) and a is not view]
        origins = {origin for a in inputs if (origin := self._origin.get(_storage(a))) is not None}
        if name is None:
            if self._provenance and origins:  # a scratch tensor filled from a source
                self._track(min(origins), view)
            return
        region = Region(view.storage_offset(), tuple(view.shape), tuple(view.stride()), copied=bool(inputs))
        self.regions[name].append(region)
        for origin in origins:
            if name not in self.sources[origin]:
                self.sources[origin].append(name)

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

    def problem(self, name: str, current: torch.Tensor) -> tuple[int, str | None]:
        """How many elements of parameter `name` were written, and what is wrong (None: each exactly once).

        `current` is the parameter now: a loader may have replaced its storage as a whole.
        """
        if _storage(current) != self._original[name]:
            return current.numel(), None
        return coverage(self.regions.get(name, []), current.numel())


def coverage(regions: list[Region], elements: int) -> tuple[int, str | None]:
    """How many of `elements` the regions write, and the problem if not each exactly once.

    Constant fills (padding) count where nothing is copied, and never as a second write.
    """
    unique = list(dict.fromkeys(region for region in regions if region.copied))
    copied = sum(region.elements for region in unique)
    if len(unique) < sum(region.copied for region in regions) or _overlap(unique):
        return min(copied, elements), "some elements are written more than once"
    if copied < elements:
        copied += _filled(unique, [region for region in regions if not region.copied])
    if copied == elements:
        return elements, None
    return copied, f"{elements - copied} of {elements} elements are not written" if copied else "nothing is written"


def _overlap(regions: list[Region]) -> bool:
    """Whether two regions share an element (contiguous runs exactly, other views by their boxes)."""
    intervals = [region.interval() for region in regions]
    runs = sorted(x for x in intervals if x is not None)
    if any(start < end for (_, end), (start, _) in pairwise(runs)):
        return True
    strided = [region for region, interval in zip(regions, intervals, strict=True) if interval is None]
    if len(strided) > _PAIRWISE_LIMIT:
        return False
    return any(_boxes_meet(a, b) for i, a in enumerate(strided) for b in strided[:i])


def _boxes_meet(a: Region, b: Region) -> bool:
    """Whether two strided views of equal strides overlap; views of unequal strides are taken as disjoint."""
    if a.stride != b.stride:
        return False
    distance = a.offset - b.offset
    sizes = zip(a.stride, a.shape, b.shape, strict=True)
    for stride, size_a, size_b in sorted(sizes, reverse=True):
        step = round(distance / stride) if stride else 0
        if not -size_a < step < size_b:
            return False
        distance -= step * stride
    return distance == 0


def _filled(copied: list[Region], fills: list[Region]) -> int:
    """Elements of constant fills that no copy covers (contiguous runs only, as padding always is)."""
    taken = sorted(x for region in copied if (x := region.interval()) is not None)
    total = 0
    for start, end in dict.fromkeys(x for region in fills if (x := region.interval()) is not None):
        covered = sum(max(0, min(end, e) - max(start, s)) for s, e in taken)
        total += end - start - covered
    return total


def _storage(tensor: torch.Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


def _flatten(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flatten(value)
