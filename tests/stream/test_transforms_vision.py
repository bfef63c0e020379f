"""The transforms of vision towers: against what the converter does."""

from __future__ import annotations

import pytest
import torch

from ggufmap.mapping.transforms import Transform, output_shapes
from ggufmap.stream.transforms import apply


def test_biases_of_a_fused_projection_go_back_behind_each_other() -> None:
    original = torch.arange(12, dtype=torch.float32)
    parts = [original[:4], original[4:8], original[8:]]  # conversion/qwenvl.py, modify_tensors
    (found,) = apply(Transform("join_values"), parts)
    assert torch.equal(found, original)


def test_frames_go_back_into_one_patch_embedding() -> None:
    original = torch.randn(5, 3, 2, 4, 4)
    parts = [original[:, :, 0, ...], original[:, :, 1, ...]]  # conversion/qwenvl.py, modify_tensors
    (found,) = apply(Transform("frames"), parts)
    assert torch.equal(found, original)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("join_values", [(4,), (2, 3)]),
        ("frames", [(4, 3, 2, 2), (4, 3, 2, 1)]),
        ("frames", [(4, 3, 2), (4, 3, 2)]),
    ],
)
def test_other_shapes_are_refused(name: str, shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="expected"):
        output_shapes(Transform(name), shapes)
