"""Named value transforms, as far as mapping needs them: what they do to shapes, and whether they only move whole rows.

The values themselves are computed in `stream/transforms.py`; both tables have the same keys (a test compares them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
MAX_EXPERTS = 65_536
"""A bound for hostile files; the largest model known has 896."""


@dataclass(frozen=True, slots=True)
class Transform:
    """A transform with its argument bound: `rope_rows:8` moves rows of 8 heads. Few take more than one."""

    name: str
    argument: int | None = None
    more: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name}:{','.join(map(str, (self.argument, *self.more)))}"


@dataclass(frozen=True, slots=True)
class Kind:
    """What mapping knows of a transform: shapes in -> shapes out (ValueError says why not).

    `moves_rows`: valid on packed rows, since whole rows move and no value changes. `cuts_rows`: the outputs are
    consecutive runs of the one input's rows, so each can be read by itself. `computes`: values change, so that
    quantised inputs are decoded in float32.
    """

    shapes: Callable[..., list[Shape]]
    moves_rows: bool
    cuts_rows: bool = False
    row_group: Callable[[Shape, int], int] | None = None
    """Rows that must be read together for the transform to work on a part of a matrix; None: only on the whole."""
    computes: bool = False
    stacks: bool = False
    """On stacks of matrices, each place of the stack is made of the inputs' same place alone."""


def _copy(shapes: Sequence[Shape], _: int) -> list[Shape]:
    return list(shapes)


def _rope_rows(shapes: Sequence[Shape], heads: int) -> list[Shape]:
    rows = shapes[0][0] if shapes[0] else 1
    if heads < 1 or rows % (2 * heads):
        raise ValueError(f"{rows} rows cannot be split into {heads} heads of an even size")
    return list(shapes)


def _experts(shapes: Sequence[Shape], _: int) -> list[Shape]:
    if len(shapes[0]) < 2:
        raise ValueError("a stack of experts has two dimensions or more")
    if shapes[0][0] > MAX_EXPERTS:
        raise ValueError(f"{shapes[0][0]} experts are more than any model has (limit {MAX_EXPERTS})")
    return [shapes[0][1:]] * shapes[0][0]


def _minus_inverse_root(shapes: Sequence[Shape], square: int) -> list[Shape]:
    if square < 1:
        raise ValueError(f"{square} has no inverse root")
    return list(shapes)


def _experts_below(shapes: Sequence[Shape], _: int) -> list[Shape]:
    if len(shapes[0]) != 3:
        raise ValueError("a stack of matrices is expected")
    experts, rows, columns = shapes[0]
    return [(experts * rows, columns)]


def _turned_experts_below(shapes: Sequence[Shape], _: int) -> list[Shape]:
    if len(shapes[0]) != 3:
        raise ValueError("a stack of matrices is expected")
    experts, rows, columns = shapes[0]
    return [(experts * columns, rows)]


def _expert_halves(shapes: Sequence[Shape], _: int) -> list[Shape]:
    if len(shapes[0]) != 3 or shapes[0][1] % 2:
        raise ValueError("a stack of pairs of matrices is expected")
    experts, rows, columns = shapes[0]
    return [(rows // 2, columns)] * (2 * experts)


def _mla_kv_b(shapes: Sequence[Shape], heads: int) -> list[Shape]:
    """(H, rank, nope) and (H, v, rank) to (H (nope + v), rank); older files have both as matrices."""
    k_b, v_b = (_per_head(shape, heads) for shape in shapes)
    if k_b[1] != v_b[2]:
        raise ValueError(f"rank {k_b[1]} of attn_k_b is not the rank {v_b[2]} of attn_v_b {shapes[1]}")
    return [(heads * (k_b[2] + v_b[1]), k_b[1])]


def _per_head(shape: Shape, heads: int) -> Shape:
    if len(shape) == 3 and shape[0] == heads:
        return shape
    if len(shape) == 2 and heads and shape[0] % heads == 0:
        return heads, shape[0] // heads, shape[1]
    raise ValueError(f"{shape} cannot be split into {heads} heads")


def _conv_channels(shapes: Sequence[Shape], _: int) -> list[Shape]:
    """(1, channels, 1, kernel) or a matrix (channels, kernel) to (channels, 1, kernel)."""
    sizes = [size for size in shapes[0] if size != 1]
    if len(sizes) != 2:
        raise ValueError(f"{shapes[0]} is not channels by kernel size")
    return [(sizes[0], 1, sizes[1])]


def _flat(shapes: Sequence[Shape], _: int) -> list[Shape]:
    return [(math.prod(shapes[0]),)]


def _join_rows(shapes: Sequence[Shape], _: int) -> list[Shape]:
    """Matrices, or stacks of equally many, below each other."""
    first = shapes[0]
    for shape in shapes:
        if len(shape) < 2 or shape[:-2] != first[:-2] or shape[-1] != first[-1]:
            raise ValueError(f"{shape} does not go below {first}")
    return [(*first[:-2], sum(shape[-2] for shape in shapes), first[-1])]


def _join_values(shapes: Sequence[Shape], _: int) -> list[Shape]:
    if any(len(shape) != 1 for shape in shapes):
        raise ValueError("vectors are expected")
    return [(sum(shape[0] for shape in shapes),)]


def _frames(shapes: Sequence[Shape], _: int) -> list[Shape]:
    """Two-dimensional convolutions, one per frame, as one that runs over time as well."""
    first = shapes[0]
    if len(first) != 4 or any(shape != first for shape in shapes):
        raise ValueError("equal two-dimensional convolutions are expected")
    return [(*first[:2], len(shapes), *first[2:])]


def _transpose(shapes: Sequence[Shape], _: int) -> list[Shape]:
    if len(shapes[0]) != 2:
        raise ValueError("a matrix is expected")
    return [(shapes[0][1], shapes[0][0])]


def _qkv_heads(shapes: Sequence[Shape], heads: int) -> list[Shape]:
    rows = shapes[0][0] if shapes[0] else 1
    if heads < 1 or rows % (3 * heads):
        raise ValueError(f"{rows} rows cannot be split into query, key and value of {heads} heads")
    return list(shapes)


def _qkv_groups(shapes: Sequence[Shape], groups: int) -> list[Shape]:
    """A fused projection whose query part is square."""
    if len(shapes[0]) != 2:
        raise ValueError("a matrix is expected")
    rows, columns = shapes[0]
    if groups < 1 or rows <= columns or (rows - columns) % (2 * groups) or columns % groups:
        raise ValueError(f"{rows} rows are not {columns} of query and {groups} heads of key and value")
    return list(shapes)


def _qkv_groups_rope(shapes: Sequence[Shape], groups: int) -> list[Shape]:
    """Query, key and value in one; key and value are of `groups` heads."""
    query, key, value = shapes
    matrices = len(query) == len(key) == 2 and key == value and query[1] == key[1]
    if not matrices or groups < 1 or key[0] % (2 * groups) or query[0] % key[0]:
        raise ValueError(f"query {query}, key {key} and value {value} are not in {groups} groups")
    return [(query[0] + 2 * key[0], query[1])]


def _join_rope_rows(shapes: Sequence[Shape], heads: int, kv_heads: int) -> list[Shape]:
    _rope_rows(shapes[:1], heads)
    _rope_rows(shapes[1:2], kv_heads)
    return _join_rows(shapes, 0)


def _as_row(shapes: Sequence[Shape], _: int) -> list[Shape]:
    size = math.prod(shapes[0])
    if size not in shapes[0]:
        raise ValueError("one row is expected")
    return [(1, size)]


def _group_rows(shapes: Sequence[Shape], groups: int) -> list[Shape]:
    """Query, key and value in one matrix and the gate in another: the value part is as large as the gate."""
    (rows, columns), gate = shapes
    if (
        len(gate) != 2
        or groups < 1
        or gate[1] != columns
        or rows <= gate[0]
        or (rows - gate[0]) % (2 * groups)
        or gate[0] % groups
    ):
        raise ValueError(f"{shapes[0]} and {gate} are not query, key, value and gate of {groups} heads")
    return [(rows + gate[0], columns)]


def _tiled(size: int, groups: int, heads: int) -> None:
    if groups < 1 or heads < 1 or heads % groups or size % heads:
        raise ValueError(f"{size} values are not {heads} heads in {groups} groups")


def _tiled_rows(shapes: Sequence[Shape], groups: int, heads: int) -> list[Shape]:
    _tiled(shapes[0][0], groups, heads)
    return list(shapes)


def _tiled_columns(shapes: Sequence[Shape], groups: int, heads: int) -> list[Shape]:
    if len(shapes[0]) != 2:
        raise ValueError("a matrix is expected")
    _tiled(shapes[0][1], groups, heads)
    return list(shapes)


def _tiled_tail(shapes: Sequence[Shape], groups: int, heads: int, size: int) -> list[Shape]:
    if not 0 < size <= shapes[0][0]:
        raise ValueError(f"the last {size} of {shapes[0][0]} rows")
    _tiled(size, groups, heads)
    return list(shapes)


def _tiled_tail_conv(shapes: Sequence[Shape], groups: int, heads: int, size: int) -> list[Shape]:
    channels = _conv_channels(shapes, 0)
    _tiled_tail(channels, groups, heads, size)
    return channels


def _stacked_columns(shapes: Sequence[Shape], _: int) -> list[Shape]:
    """Stacks of matrices, next to each other when transposed."""
    first = shapes[0]
    if len(first) != 3 or any(shape != first for shape in shapes):
        raise ValueError("equal stacks of matrices are expected")
    return [(first[0], first[2], len(shapes) * first[1])]


def _interleave(shapes: Sequence[Shape], _: int) -> list[Shape]:
    first = shapes[0]
    if not first or any(shape != first for shape in shapes):
        raise ValueError("equal shapes are expected")
    return [(*first[:-1], len(shapes) * first[-1])]


KINDS: dict[str, Kind] = {
    "copy": Kind(_copy, moves_rows=True, row_group=lambda shape, _: 1),
    "rope_rows": Kind(_rope_rows, moves_rows=True, row_group=lambda shape, heads: shape[0] // heads),
    "add": Kind(_copy, moves_rows=False, computes=True),
    "minus_inverse_root": Kind(_minus_inverse_root, moves_rows=False, computes=True),
    "a_log": Kind(_copy, moves_rows=False, computes=True),
    "a_log_flat": Kind(_flat, moves_rows=False, computes=True),
    "log_flat": Kind(_flat, moves_rows=False, computes=True),
    "conv_channels": Kind(_conv_channels, moves_rows=False),
    "flat": Kind(_flat, moves_rows=False),
    "join_rows": Kind(_join_rows, moves_rows=True, stacks=True),
    "join_values": Kind(_join_values, moves_rows=False),
    "frames": Kind(_frames, moves_rows=False),
    "experts": Kind(_experts, moves_rows=True, cuts_rows=True),
    "expert_halves": Kind(_expert_halves, moves_rows=True, cuts_rows=True),
    "experts_below": Kind(_experts_below, moves_rows=True),
    "turned_experts_below": Kind(_turned_experts_below, moves_rows=False),
    "mla_kv_b": Kind(_mla_kv_b, moves_rows=False),
    "join_rope_rows": Kind(_join_rope_rows, moves_rows=True),
    "as_row": Kind(_as_row, moves_rows=False),
    "group_rows": Kind(_group_rows, moves_rows=True),
    "tiled_rows": Kind(_tiled_rows, moves_rows=True),
    "tiled_columns": Kind(_tiled_columns, moves_rows=False),
    "tiled_tail": Kind(_tiled_tail, moves_rows=True),
    "tiled_tail_conv": Kind(_tiled_tail_conv, moves_rows=False),
    "tiled_a_log": Kind(_tiled_rows, moves_rows=False, computes=True),
    "transpose": Kind(_transpose, moves_rows=False),
    "stacked_columns": Kind(_stacked_columns, moves_rows=False, stacks=True),
    "alternating_columns": Kind(_stacked_columns, moves_rows=False, stacks=True),
    "interleave": Kind(_interleave, moves_rows=False),
    "qkv_heads": Kind(_qkv_heads, moves_rows=True),
    # Whole rows move, but it finds the parts by the number of columns, which rows of bytes do not have.
    "qkv_groups": Kind(_qkv_groups, moves_rows=False),
    "qkv_groups_rope": Kind(_qkv_groups_rope, moves_rows=True),
}


def output_shapes(transform: Transform, shapes: Sequence[Shape]) -> list[Shape]:
    """Shapes of the checkpoint tensors that `transform` makes of tensors of `shapes`. ValueError says why it cannot."""
    try:
        return KINDS[transform.name].shapes(shapes, transform.argument or 0, *transform.more)
    except IndexError as e:
        raise ValueError(f"{', '.join(map(str, shapes))}: too few dimensions") from e
