"""The transforms of GPT-OSS, Llama 4 and DBRX, against the converter's formulas."""

from __future__ import annotations

import pytest
import torch

from ggufmap.mapping.transforms import Transform, output_shapes
from ggufmap.stream.transforms import apply

EXPERTS, HIDDEN, WIDTH = 3, 4, 6


def _check(name: str, stored: list[torch.Tensor], original: torch.Tensor) -> None:
    (found,) = apply(Transform(name), stored)
    assert torch.equal(found, original)
    assert output_shapes(Transform(name), [tuple(x.shape) for x in stored]) == [tuple(original.shape)]


def test_gpt_oss_experts_have_a_column_of_the_gate_before_each_of_up() -> None:
    """conversion/gpt_oss.py: transposed, then even rows are the gate and odd ones up."""
    original = torch.arange(EXPERTS * HIDDEN * 2 * WIDTH * 1.0).reshape(EXPERTS, HIDDEN, 2 * WIDTH)
    rows = original.transpose(-1, -2)
    _check("alternating_columns", [rows[:, ::2, :], rows[:, 1::2, :]], original)


def test_gpt_oss_biases_take_turns() -> None:
    original = torch.arange(EXPERTS * 2 * WIDTH * 1.0).reshape(EXPERTS, 2 * WIDTH)
    _check("interleave", [original[..., ::2], original[..., 1::2]], original)


def test_llama_4_experts_are_halves_and_transposed() -> None:
    """conversion/llama.py, Llama4Model: gate_up_proj cut in two, down_proj only transposed."""
    original = torch.arange(EXPERTS * HIDDEN * 2 * WIDTH * 1.0).reshape(EXPERTS, HIDDEN, 2 * WIDTH)
    gate, up = original.transpose(-1, -2).split(WIDTH, dim=-2)
    _check("stacked_columns", [gate, up], original)
    _check("stacked_columns", [original.transpose(-1, -2)], original)


def test_dbrx_s_experts_stand_below_each_other_the_last_ones_transposed() -> None:
    """conversion/dbrx.py: a matrix of all experts is viewed as a stack; those of w2 are transposed."""
    original = torch.arange(EXPERTS * WIDTH * HIDDEN * 1.0).reshape(EXPERTS * WIDTH, HIDDEN)
    stack = original.view(EXPERTS, WIDTH, HIDDEN)
    _check("experts_below", [stack], original)
    _check("turned_experts_below", [stack.permute(0, 2, 1)], original)


@pytest.mark.parametrize("name", ["experts_below", "turned_experts_below"])
def test_what_is_no_stack_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a stack of matrices"):
        output_shapes(Transform(name), [(2, 3)])


@pytest.mark.parametrize("name", ["stacked_columns", "alternating_columns", "interleave"])
def test_unequal_parts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="equal"):
        output_shapes(Transform(name), [(2, 3, 4), (2, 5, 4)])
