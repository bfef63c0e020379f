"""Each transform undoes what llama.cpp's converter does: against the converter's formula, written here in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ggufmap.errors import MappingError
from ggufmap.mapping.transforms import KINDS, Transform, output_shapes
from ggufmap.stream.transforms import APPLY, apply

Values = np.ndarray[Any, Any]
SIZES = [(64, 128), (8, 128), (4, 2), (1, 64), (3, 10)]  # heads, head size


def permute(weights: Values, heads: int) -> Values:
    """conversion/llama.py: each head's rows go from (2, d/2) to (d/2, 2), for interleaved RoPE."""
    half = weights.shape[0] // heads // 2
    return weights.reshape(heads, 2, half, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def random(*shape: int) -> Values:
    return np.random.default_rng(7).standard_normal(shape, dtype=np.float32)


def test_both_tables_know_the_same_transforms() -> None:
    assert APPLY.keys() == KINDS.keys()


def test_copy_is_the_tensor_itself() -> None:
    tensors = [torch.from_numpy(random(3, 2)), torch.from_numpy(random(4))]
    found = apply(Transform("copy"), tensors)
    assert all(a is b for a, b in zip(found, tensors, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "size"), SIZES)
def test_rope_rows_undo_the_permutation_of_weights(heads: int, size: int, dtype: torch.dtype) -> None:
    original = torch.from_numpy(random(heads * size, 6)).to(dtype)
    stored = torch.from_numpy(permute(original.float().numpy(), heads)).to(dtype)
    (found,) = apply(Transform("rope_rows", heads), [stored])
    assert found.dtype == dtype
    assert torch.equal(found, original)


@pytest.mark.parametrize(("heads", "size"), SIZES)
def test_rope_rows_undo_the_permutation_of_biases(heads: int, size: int) -> None:
    original = random(heads * size)
    (found,) = apply(Transform("rope_rows", heads), [torch.from_numpy(permute(original, heads))])
    assert np.array_equal(found.numpy(), original)


@pytest.mark.parametrize("heads", [64, 8])
def test_rope_rows_of_a_64_to_8_model_by_row_number(heads: int) -> None:
    """Row r of the file is the row of the checkpoint that its number says."""
    rows = np.repeat(np.arange(heads * 128, dtype=np.float32)[:, None], 3, axis=1)
    (found,) = apply(Transform("rope_rows", heads), [torch.from_numpy(permute(rows, heads))])
    assert found[:, 0].tolist() == list(range(heads * 128))
    # The wrong number of heads does not do: Q's rows are not K's.
    (wrong,) = apply(Transform("rope_rows", 72 - heads), [torch.from_numpy(permute(rows, heads))])
    assert wrong[:, 0].tolist() != list(range(heads * 128))


def test_rope_rows_by_hand() -> None:
    stored = torch.tensor([0, 2, 1, 3, 10, 12, 11, 13])  # two heads of four: interleaved halves
    (found,) = apply(Transform("rope_rows", 2), [stored])
    assert found.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_add_undoes_norms_stored_plus_one(dtype: torch.dtype) -> None:
    original = torch.arange(-64, 64) / 128
    (found,) = apply(Transform("add", -1), [(original + 1).to(dtype)])
    assert found.dtype == torch.float32
    assert torch.equal(found, original.float())
    (quarter,) = apply(Transform("add", -1), [torch.full((4,), 1.25, dtype=dtype)])
    assert quarter.tolist() == [0.25] * 4


def test_experts_are_cut_in_file_order() -> None:
    stack = np.stack([np.full((4, 6), e, dtype=np.float32) for e in range(8)])
    found = apply(Transform("experts"), [torch.from_numpy(stack)])
    assert [t.unique().tolist() for t in found] == [[e] for e in range(8)]
    assert {tuple(t.shape) for t in found} == {(4, 6)}


@pytest.mark.parametrize("joined", [False, True], ids=["stacks", "matrices"])
def test_mla_kv_b_undoes_the_split(joined: bool) -> None:
    """conversion/deepseek.py: kv_b in heads, cut into k and v, k turned to (rank, nope)."""
    heads, nope, v, rank = 4, 6, 10, 8
    original = random(heads * (nope + v), rank)
    k_b, v_b = np.split(original.reshape(heads, nope + v, rank), [nope], axis=1)
    k_b = np.ascontiguousarray(k_b.transpose(0, 2, 1))
    stored = [torch.from_numpy(np.ascontiguousarray(part)) for part in (k_b, v_b)]
    if joined:
        stored = [part.reshape(-1, part.shape[-1]) for part in stored]
    transform = Transform("mla_kv_b", heads)
    (found,) = apply(transform, stored)
    assert np.array_equal(found.numpy(), original)
    assert output_shapes(transform, [tuple(part.shape) for part in stored]) == [original.shape]


def test_a_log_undoes_the_decay() -> None:
    original = np.linspace(-3, 3, 32, dtype=np.float32)
    (found,) = apply(Transform("a_log"), [torch.from_numpy(-np.exp(original))])
    assert np.allclose(found.numpy(), original, rtol=1e-6, atol=1e-6)
    for bad in (0.0, 0.5, float("nan")):
        with pytest.raises(MappingError, match="below 0 expected"):
            apply(Transform("a_log"), [torch.tensor([-1.0, bad])])


@pytest.mark.parametrize("shape", [(12, 4), (1, 12, 1, 4), (12, 1, 4)])
def test_conv_channels_get_their_axis_back(shape: tuple[int, ...]) -> None:
    original = random(12, 1, 4)
    transform = Transform("conv_channels")
    (found,) = apply(transform, [torch.from_numpy(original).reshape(shape)])
    assert np.array_equal(found.numpy(), original)
    assert output_shapes(transform, [shape]) == [(12, 1, 4)]
