"""Named value transforms, as far as mapping needs them: what they do to shapes, and whether they only move whole rows.

The values themselves are computed in `stream/transforms.py`; both tables have the same keys (a test compares them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform with its argument bound: `rope_rows:8` moves rows of 8 heads."""

    name: str
    argument: int | None = None

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name}:{self.argument}"


@dataclass(frozen=True, slots=True)
class Kind:
    """What mapping knows of a transform: shapes in -> shapes out (ValueError says why not); `moves_rows`: valid on
    packed rows, since whole rows move and no value changes."""

    shapes: Callable[[Sequence[Shape], int], list[Shape]]
    moves_rows: bool


def _copy(shapes: Sequence[Shape], _: int) -> list[Shape]:
    return list(shapes)


def _rope_rows(shapes: Sequence[Shape], heads: int) -> list[Shape]:
    rows = shapes[0][0]
    if heads < 1 or rows % (2 * heads):
        raise ValueError(f"{rows} rows cannot be split into {heads} heads of an even size")
    return list(shapes)


KINDS: dict[str, Kind] = {
    "copy": Kind(_copy, moves_rows=True),
    "rope_rows": Kind(_rope_rows, moves_rows=True),
    "add": Kind(_copy, moves_rows=False),
}


def output_shapes(transform: Transform, shapes: Sequence[Shape]) -> list[Shape]:
    """Shapes of the checkpoint tensors that `transform` makes of tensors of `shapes`. ValueError says why it cannot."""
    return KINDS[transform.name].shapes(shapes, transform.argument or 0)
