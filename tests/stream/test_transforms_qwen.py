"""The transforms of Qwen's linear attention and of Bailing: against what the converter does, told by row number."""

from __future__ import annotations

import pytest
import torch

from ggufmap.mapping.transforms import Transform, output_shapes
from ggufmap.stream.transforms import apply

GROUPS, EACH, KEY, VALUE, WIDTH = 2, 3, 4, 5, 7  # key heads, value heads per key head, sizes, columns
HEADS = GROUPS * EACH
BOUND = (GROUPS, (HEADS,))
TAIL = (GROUPS, (HEADS, HEADS * VALUE))


def tiled(size: int) -> list[int]:
    """conversion/qwen.py, _reorder_v_heads: the rows of the file as row numbers of the checkpoint."""
    heads = [group * EACH + i for i in range(EACH) for group in range(GROUPS)]
    return [head * size + row for head in heads for row in range(size)]


def numbered(rows: int, width: int = WIDTH) -> torch.Tensor:
    return torch.arange(rows * width, dtype=torch.float32).view(rows, width)


@pytest.mark.parametrize("size", [1, VALUE])
def test_tiled_rows_go_back_to_their_groups(size: int) -> None:
    original = numbered(HEADS * size)
    (found,) = apply(Transform("tiled_rows", *BOUND), [original[tiled(size)]])
    assert torch.equal(found, original)


def test_tiled_vectors_go_back_to_their_groups() -> None:
    original = torch.arange(HEADS, dtype=torch.float32)
    (found,) = apply(Transform("tiled_rows", *BOUND), [original[tiled(1)]])
    assert torch.equal(found, original)


def test_as_many_groups_as_heads_change_nothing() -> None:
    (found,) = apply(Transform("tiled_rows", HEADS, (HEADS,)), [numbered(HEADS * VALUE)])
    assert torch.equal(found, numbered(HEADS * VALUE))


def test_tiled_columns_go_back_to_their_groups() -> None:
    original = numbered(WIDTH, HEADS * VALUE)
    (found,) = apply(Transform("tiled_columns", *BOUND), [original[:, tiled(VALUE)]])
    assert torch.equal(found, original)


def test_a_tiled_tail_leaves_query_and_key_alone() -> None:
    above = 2 * GROUPS * KEY
    original = numbered(above + HEADS * VALUE)
    stored = original[[*range(above), *(above + row for row in tiled(VALUE))]]
    (found,) = apply(Transform("tiled_tail", *TAIL), [stored])
    assert torch.equal(found, original)
    (found,) = apply(Transform("tiled_tail_conv", *TAIL), [stored])
    assert torch.equal(found, original[:, None])


def test_a_tiled_decay_is_the_logarithm_in_its_groups() -> None:
    original = torch.linspace(0.1, 2.5, HEADS).to(torch.bfloat16).float()
    (found,) = apply(Transform("tiled_a_log", *BOUND), [-torch.exp(original)[tiled(1)]])
    assert torch.equal(found, original)


def test_group_rows_put_a_head_together_again() -> None:
    """conversion/qwen.py, Qwen3NextModel: query, key, value and gate of each key head become four runs of all heads."""
    sizes = (KEY, KEY, EACH * VALUE, EACH * VALUE)
    original = numbered(GROUPS * sum(sizes))
    parts = [torch.cat(part) for part in zip(*(x.split(sizes) for x in original.split(sum(sizes))), strict=True)]
    (found,) = apply(Transform("group_rows", GROUPS), [torch.cat(parts[:3]), parts[3]])
    assert torch.equal(found, original)


def test_join_rope_rows_undo_the_permutation_and_the_split() -> None:
    """conversion/bailingmoe.py: query and key are permuted as Llama's are, the value is not."""
    original = numbered(4 * 6 + 2 * 6 + 2 * 6)
    query, key, value = original.split((24, 12, 12))
    stored = [x.view(heads, 2, 3, WIDTH).transpose(1, 2).reshape(x.shape) for x, heads in ((query, 4), (key, 2))]
    (found,) = apply(Transform("join_rope_rows", 4, (2,)), [*stored, value])
    assert torch.equal(found, original)


@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_one_row_is_a_matrix_whatever_the_file_says(shape: tuple[int, ...]) -> None:
    (found,) = apply(Transform("as_row"), [torch.arange(5.0).view(shape)])
    assert torch.equal(found, torch.arange(5.0)[None])


@pytest.mark.parametrize(
    ("transform", "shapes", "reason"),
    [
        (Transform("tiled_rows", 2, (5,)), [(10, 3)], "10 values are not 5 heads in 2 groups"),
        (Transform("tiled_columns", 2, (4,)), [(4, 7)], "7 values are not 4 heads in 2 groups"),
        (Transform("tiled_tail", 2, (4, 8)), [(6, 3)], "the last 8 of 6 rows"),
        (Transform("tiled_tail", 2, (4, 6)), [(9, 3)], "6 values are not 4 heads"),
        (Transform("group_rows", 3), [(24, 3), (8, 3)], "of 3 heads"),
        (Transform("group_rows", 2), [(24, 3), (8, 4)], "of 2 heads"),
        (Transform("as_row"), [(2, 3)], "one row"),
        (Transform("join_rope_rows", 4, (2,)), [(8, 3), (6, 3), (6, 3)], "6 rows cannot be split into 2 heads"),
    ],
)
def test_what_does_not_fit_is_refused(transform: Transform, shapes: list[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        output_shapes(transform, shapes)
