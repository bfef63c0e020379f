"""Llama 4 Scout's RoPE scaling has no ramp: low and high frequency factor are both 1."""

from __future__ import annotations

import numpy as np
import pytest

from ggufmap.modeldir.rope import llama3_factors, llama3_scaling


@pytest.mark.parametrize(("theta", "half", "factor", "original"), [(500000.0, 64, 16.0, 8192), (500000.0, 32, 8.0, 64)])
def test_a_step_is_found_by_its_place(theta: float, half: int, factor: float, original: int) -> None:
    published = {
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": original,
    }
    factors = llama3_factors(theta, half, published).astype(np.float32)
    assert set(factors.tolist()) == {1.0, factor}
    found = llama3_scaling(factors, theta, "file")
    assert found["high_freq_factor"] == 1.0
    assert np.array_equal(llama3_factors(theta, half, {k: v for k, v in found.items() if k != "rope_type"}), factors)  # type: ignore[arg-type]
