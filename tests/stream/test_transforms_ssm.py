"""The transforms of state-space and Granite files, against the converter's formulas."""

from __future__ import annotations

import pytest
import torch

from ggufmap.errors import MappingError
from ggufmap.mapping.transforms import Transform
from ggufmap.stream.transforms import apply


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_log_comes_back_exactly_from_bfloat16_and_to_the_last_bits_from_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    original = (torch.randn(20_000, generator=generator) * 2).to(dtype).float()
    (found,) = apply(Transform("a_log"), [-torch.exp(original)])
    if dtype is torch.bfloat16:
        assert torch.equal(found, original)
    assert torch.allclose(found, original, rtol=1e-6, atol=1e-6)
    assert torch.allclose(torch.exp(found), torch.exp(original), rtol=1e-6, atol=0)


def test_vectors_lose_the_axis_that_the_converter_gave_them() -> None:
    """conversion/mamba.py: A_log and D as (heads, 1), norms as (groups, size)."""
    original = torch.linspace(-1, 3, 12).to(torch.bfloat16).float()
    assert torch.equal(apply(Transform("a_log_flat"), [-torch.exp(original).reshape(12, 1)])[0], original)
    assert torch.equal(apply(Transform("flat"), [original.reshape(3, 4)])[0], original)
    assert torch.equal(apply(Transform("log_flat"), [torch.exp(original).reshape(12, 1)])[0], original)
    with pytest.raises(MappingError, match="decay"):
        apply(Transform("log_flat"), [-torch.exp(original).reshape(12, 1)])


def test_rows_are_joined_within_each_expert() -> None:
    """conversion/granite.py: input_linear of every expert cut into gate and up."""
    original = torch.arange(2 * 6 * 4.0).reshape(2, 6, 4)
    gate, up = original.split(3, dim=-2)
    assert torch.equal(apply(Transform("join_rows"), [gate, up])[0], original)
    assert torch.equal(apply(Transform("join_rows"), [gate[1], up[1]])[0], original[1])
