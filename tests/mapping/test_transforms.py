"""What mapping knows of transforms: shapes in and out, why it refuses, and which only move whole rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ggufmap.mapping.transforms import KINDS, Shape, Transform, output_shapes
from ggufmap.stream.transforms import apply

GOOD: list[tuple[Transform, list[Shape]]] = [
    (Transform("copy"), [(3, 4)]),
    (Transform("copy"), [(5,)]),
    (Transform("rope_rows", 2), [(8, 3)]),
    (Transform("rope_rows", 2), [(8,)]),
    (Transform("add", -1), [(7,)]),
    (Transform("minus_inverse_root", 25), [(6,)]),
    (Transform("a_log"), [(6,)]),
    (Transform("experts"), [(4, 2, 3)]),
    (Transform("expert_halves"), [(4, 6, 3)]),
    (Transform("experts_below"), [(4, 6, 3)]),
    (Transform("turned_experts_below"), [(4, 6, 3)]),
    (Transform("mla_kv_b", 2), [(2, 8, 4), (2, 5, 8)]),
    (Transform("conv_channels"), [(1, 6, 1, 4)]),
    (Transform("a_log_flat"), [(6, 1)]),
    (Transform("log_flat"), [(6, 1)]),
    (Transform("flat"), [(2, 3)]),
    (Transform("join_rows"), [(4, 3), (5, 3)]),
    (Transform("join_rows"), [(2, 4, 3), (2, 4, 3)]),
    (Transform("join_values"), [(4,), (3,)]),
    (Transform("frames"), [(4, 3, 2, 2), (4, 3, 2, 2)]),
    (Transform("transpose"), [(4, 3)]),
    (Transform("stacked_columns"), [(2, 4, 3), (2, 4, 3)]),
    (Transform("alternating_columns"), [(2, 4, 3), (2, 4, 3)]),
    (Transform("interleave"), [(2, 4), (2, 4)]),
    (Transform("as_row"), [(5,)]),
    (Transform("as_row"), [(1, 5)]),
    (Transform("group_rows", 2), [(24, 3), (8, 3)]),
    (Transform("tiled_rows", 2, (4,)), [(8, 3)]),
    (Transform("tiled_rows", 2, (4,)), [(8,)]),
    (Transform("tiled_columns", 2, (4,)), [(3, 8)]),
    (Transform("tiled_tail", 2, (4, 8)), [(20, 3)]),
    (Transform("tiled_tail_conv", 2, (4, 8)), [(20, 3)]),
    (Transform("tiled_a_log", 2, (4,)), [(4,)]),
    (Transform("qkv_heads", 2), [(12, 4)]),
    (Transform("qkv_heads", 2), [(12,)]),
    (Transform("qkv_groups", 2), [(12, 8)]),
    (Transform("qkv_groups_rope", 2), [(8, 8), (4, 8), (4, 8)]),
    (Transform("join_rope_rows", 4, (2,)), [(8, 8), (4, 8), (4, 8)]),
]
EXAMPLES = {transform.name: (transform, shapes) for transform, shapes in reversed(GOOD)}
good = pytest.mark.parametrize(("transform", "shapes"), GOOD, ids=str)


def stored(transform: Transform, shape: Shape) -> torch.Tensor:
    """Values that the transform takes: a decay is stored below 0, or above it."""
    return (torch.rand(shape) + 1) * (1 if transform.name == "log_flat" else -1)


@good
def test_shapes_are_those_that_the_values_have(transform: Transform, shapes: list[Shape]) -> None:
    values = apply(transform, [stored(transform, shape) for shape in shapes])
    assert [tuple(value.shape) for value in values] == output_shapes(transform, shapes)


def test_every_transform_is_tried() -> None:
    assert EXAMPLES.keys() == KINDS.keys(), "give the new transform a line in GOOD"


@good
def test_what_moves_rows_moves_whole_rows_and_changes_none(transform: Transform, shapes: list[Shape]) -> None:
    """So that it is valid on packed rows as well: what comes out are the rows that went in."""
    kind = KINDS[transform.name]
    if not kind.moves_rows:
        assert not kind.cuts_rows and kind.row_group is None
        return
    inputs = [-torch.rand(shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    outputs = apply(transform, inputs)
    vectors = all(len(shape) == 1 for shape in shapes)  # a bias: its values are the rows

    def rows(tensors: list[torch.Tensor]) -> list[list[float]]:
        return sorted(
            row for tensor in tensors for row in tensor.reshape(-1, 1 if vectors else tensor.shape[-1]).tolist()
        )

    assert rows(outputs) == rows(inputs)


@good
def test_what_cuts_rows_gives_consecutive_runs(transform: Transform, shapes: list[Shape]) -> None:
    inputs = [stored(transform, shape) for shape in shapes]
    flat = torch.cat([tensor.reshape(-1) for tensor in apply(transform, inputs)])
    in_order = len(inputs) == 1 and torch.equal(flat, inputs[0].reshape(-1))
    assert in_order or not KINDS[transform.name].cuts_rows


@good
def test_what_computes_nothing_keeps_every_value(transform: Transform, shapes: list[Shape]) -> None:
    inputs = [stored(transform, shape) for shape in shapes]
    outputs = apply(transform, inputs)
    same = torch.equal(*(torch.cat([t.reshape(-1) for t in side]).sort().values for side in (inputs, outputs)))
    assert same is not KINDS[transform.name].computes


@good
def test_parts_by_row_group_are_parts_of_the_whole(transform: Transform, shapes: list[Shape]) -> None:
    """A weight loader may ask for some rows: by whole groups, the transform of a part is the part of the transform."""
    group_of = KINDS[transform.name].row_group
    if group_of is None:
        return
    group = group_of(shapes[0], transform.argument or 0)
    assert shapes[0][0] % group == 0
    values = torch.rand(shapes[0])
    (whole,) = apply(transform, [values])
    for first in range(0, shapes[0][0], group):
        part = slice(first, first + group)
        argument = None if transform.argument is None else transform.argument * group // shapes[0][0]
        (found,) = apply(Transform(transform.name, argument), [values[part]])
        assert torch.equal(found, whole[part])


shape = st.lists(st.integers(1, 8), max_size=4).map(tuple)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(data=st.data(), name=st.sampled_from(sorted(EXAMPLES)))
def test_any_shapes_fit_or_are_refused_with_a_reason(data: st.DataObject, name: str) -> None:
    """Shapes come from the file: whatever they are, nothing but a ValueError, and what fits can be computed."""
    example, like = EXAMPLES[name]
    shapes = [data.draw(st.sampled_from([original]) | shape) for original in like]
    numbers = [
        data.draw(st.sampled_from([n]) | st.integers(-2, 9)) for n in (example.argument, *example.more) if n is not None
    ]
    transform = Transform(name, numbers[0] if numbers else None, tuple(numbers[1:]))
    try:
        expected = output_shapes(transform, shapes)
    except ValueError as e:
        assert str(e)
        return
    values = apply(transform, [stored(transform, one) for one in shapes])
    assert [tuple(value.shape) for value in values] == expected


@pytest.mark.parametrize(
    ("transform", "shapes", "message"),
    [
        (Transform("rope_rows", 3), [(8, 3)], "8 rows cannot be split into 3 heads of an even size"),
        (Transform("rope_rows", 4), [(4, 3)], "4 rows cannot be split into 4 heads of an even size"),
        (Transform("rope_rows", 0), [(8, 3)], "8 rows cannot be split into 0 heads"),
        (Transform("rope_rows", -2), [(8, 3)], "cannot be split into -2 heads"),
        (Transform("rope_rows", 2), [()], "1 rows cannot be split into 2 heads"),
        (Transform("experts"), [(5,)], "stack of experts"),
        (Transform("mla_kv_b", 3), [(2, 8, 4), (2, 5, 8)], r"\(2, 8, 4\) cannot be split into 3 heads"),
        (Transform("mla_kv_b", 0), [(2, 8, 4), (2, 5, 8)], "cannot be split into 0 heads"),
        (Transform("mla_kv_b", 2), [(2, 8, 4), (2, 5, 9)], "rank 8 of attn_k_b is not the rank 9"),
        (Transform("conv_channels"), [(6,)], "not channels by kernel size"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused_with_the_reason(
    transform: Transform, shapes: list[Shape], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        output_shapes(transform, shapes)


def test_name_of_a_bound_transform() -> None:
    assert str(Transform("copy")) == "copy"
    assert str(Transform("rope_rows", 8)) == "rope_rows:8"
    assert str(Transform("add", 0)) == "add:0"
