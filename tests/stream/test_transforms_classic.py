"""The transforms of the older families undo what their converters did, as llama.cpp's conversion/*.py writes it."""

from __future__ import annotations

import pytest
import torch

from ggufmap.mapping.transforms import Transform, output_shapes
from ggufmap.stream.transforms import apply

HEADS, KV_HEADS, SIZE, WIDTH = 6, 2, 8, 48


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """LlamaModel.permute."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def undone(transform: Transform, *tensors: torch.Tensor) -> torch.Tensor:
    (result,) = apply(transform, tensors)
    assert [tuple(result.shape)] == output_shapes(transform, [tuple(t.shape) for t in tensors])
    return result


def test_gpt2_turned_its_matrices() -> None:
    weight = random(WIDTH, 3 * WIDTH)
    found = undone(Transform("transpose"), weight.transpose(1, 0))
    assert torch.equal(found, weight) and found.is_contiguous()


@pytest.mark.parametrize("columns", [(WIDTH,), ()])
def test_bloom_put_all_queries_first(columns: tuple[int, ...]) -> None:
    original = random(3 * WIDTH, *columns)
    per_head = original.reshape(HEADS, 3, WIDTH // HEADS, *columns)
    stored = torch.cat([per_head[:, i].reshape(-1, *columns) for i in range(3)], dim=0)
    assert not torch.equal(stored, original)
    assert torch.equal(undone(Transform("qkv_heads", HEADS), stored), original)


@pytest.mark.parametrize("groups", [1, KV_HEADS, HEADS])
def test_falcon_put_all_queries_first(groups: int) -> None:
    original = random((HEADS + 2 * groups) * SIZE, HEADS * SIZE)
    grouped = original.view(groups, HEADS // groups + 2, SIZE, HEADS * SIZE)
    parts = grouped[:, :-2], grouped[:, [-2]], grouped[:, [-1]]
    stored = torch.cat([part.reshape(-1, HEADS * SIZE) for part in parts])
    assert torch.equal(undone(Transform("qkv_groups", groups), stored), original)


def test_internlm2_cut_and_permuted() -> None:
    original = random((HEADS + 2 * KV_HEADS) * SIZE, WIDTH)
    grouped = original.reshape(KV_HEADS, HEADS // KV_HEADS + 2, SIZE, WIDTH)
    q, k, v = (part.reshape(-1, WIDTH) for part in (grouped[:, :-2], grouped[:, -2], grouped[:, -1]))
    stored = permuted(q, HEADS), permuted(k, KV_HEADS), v
    assert torch.equal(undone(Transform("qkv_groups_rope", KV_HEADS), *stored), original)


@pytest.mark.parametrize(
    ("transform", "shapes"),
    [
        (Transform("transpose"), [(4,)]),
        (Transform("transpose"), [(4, 4, 4)]),
        (Transform("qkv_heads", 5), [(48, 16)]),
        (Transform("qkv_heads", 0), [(48, 16)]),
        (Transform("qkv_groups", 2), [(80,)]),
        (Transform("qkv_groups", 0), [(80, 48)]),
        (Transform("qkv_groups", 3), [(80, 48)]),
        (Transform("qkv_groups", 2), [(48, 48)]),
        (Transform("qkv_groups_rope", 2), [(48, 48), (16, 48), (16, 32)]),
        (Transform("qkv_groups_rope", 0), [(48, 48), (16, 48), (16, 48)]),
        (Transform("qkv_groups_rope", 2), [(40, 48), (16, 48), (16, 48)]),
    ],
)
def test_what_cannot_be_is_refused(transform: Transform, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        output_shapes(transform, shapes)


@pytest.mark.parametrize(("square", "offset"), [(25, 1.0 / 5), (125, 1.0 / (5**1.5))])
def test_plamo_s_norms_come_back_exactly_if_they_were_bfloat16(square: int, offset: float) -> None:
    """conversion/plamo.py: the offset is added in float32, so that a few low bits are lost."""
    original = torch.randn(4096, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).float()
    (found,) = apply(Transform("minus_inverse_root", square), [original + offset])
    assert torch.equal(found, original)
    finer = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    (found,) = apply(Transform("minus_inverse_root", square), [finer + offset])
    assert torch.equal(found + offset, finer + offset)
