"""RoPE: header keys and stored frequency factors to `rope_parameters`, solved exactly or refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MetadataError, UnsupportedError
from ggufmap.modeldir.rope import (
    llama3_factors,
    llama3_scaling,
    mla_rope_parameters,
    rope_factors,
    rope_parameters,
    rope_parameters_by_layer_type,
)

Values = np.ndarray[Any, Any]


def converter_factors(theta: float, dim: int, scaling: dict[str, float]) -> Values:
    """conversion/llama.py, generate_extra_tensors, one frequency after the other, as it is written there."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    old_context = scaling["original_max_position_embeddings"]
    low_wavelength, high_wavelength = old_context / low, old_context / high
    factors = []
    for i in range(0, dim, 2):
        frequency = 1.0 / theta ** (i / dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < high_wavelength:
            factors.append(1.0)
        elif wavelength > low_wavelength:
            factors.append(factor)
        else:
            smooth = (old_context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def scaling(factor: float, original: int = 8192, low: float = 1.0, high: float = 4.0) -> dict[str, float]:
    return {
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def parameters(path: Path, metadata: small.Metadata, factors: Values | None = None, **tensor: Any) -> dict[str, Any]:
    tensors = small.llama_tensors()
    if factors is not None:
        tensors.append(TensorSpec("rope_freqs.weight", (len(factors),), gb.F32, factors.tobytes(), **tensor))
    with open_checkpoint(small.write_llama(path / "m.gguf", small.llama_metadata() | metadata, tensors)) as checkpoint:
        return dict(rope_parameters(checkpoint))


@pytest.mark.parametrize("original", [8192, 64, 4096, 131072])
@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize(("theta", "dim"), [(500_000.0, 128), (500_000.0, 64), (1_000_000.0, 32)])
def test_llama3_scaling_is_solved_from_its_factors(factor: float, original: int, theta: float, dim: int) -> None:
    wanted = scaling(factor, original)
    factors = converter_factors(theta, dim, wanted)
    assert ((factors > 1) & (factors < factor)).any() and factors.max() == factor
    # Not just equal in effect: the config's own numbers.
    assert llama3_scaling(factors, theta, "m.gguf") == {"rope_type": "llama3", **wanted}


def test_a_step_without_a_ramp_is_solved_in_effect() -> None:
    """With few frequencies none may lie between the ends: then many lengths give the same factors."""
    factors = np.array([1, 1, 1, 8], dtype=np.float32)
    found = llama3_scaling(factors, 10_000.0, "m.gguf")
    again = {key: float(str(value)) for key, value in found.items() if key != "rope_type"}
    assert np.allclose(converter_factors(10_000.0, 8, again), factors)


def test_a_ramp_that_never_ends_is_solved_in_effect_or_refused() -> None:
    """No frequency is slow enough to be divided by the whole factor, so the file does not tell it."""
    one = converter_factors(10_000.0, 32, scaling(32.0, 131072))
    assert ((one > 1) & (one < 2)).sum() == 1
    again = {k: float(str(v)) for k, v in llama3_scaling(one, 10_000.0, "m.gguf").items() if k != "rope_type"}
    assert np.allclose(converter_factors(10_000.0, 32, again), one, rtol=1e-4)
    two = converter_factors(10_000.0, 32, scaling(32.0, 65536))
    assert ((two > 1) & (two < 32)).sum() == 2
    with pytest.raises(FileError, match="fits no Llama 3 RoPE scaling"):
        llama3_scaling(two, 10_000.0, "m.gguf")


def test_published_constants_come_out_as_published() -> None:
    for factor in (8.0, 32.0):  # Llama 3.1 and 3.2
        found = llama3_scaling(converter_factors(500_000.0, 128, scaling(factor)), 500_000.0, "m.gguf")
        assert found == {"rope_type": "llama3", **scaling(factor)}


@pytest.mark.parametrize(("low", "high"), [(1.0, 8.0), (2.0, 8.0), (1.0, 32.0)])
def test_other_constants_are_fitted_to_the_ramp(low: float, high: float) -> None:
    factors = converter_factors(500_000.0, 128, scaling(16.0, 8192, low, high))
    found = llama3_scaling(factors, 500_000.0, "m.gguf")
    again = {key: float(str(value)) for key, value in found.items() if key != "rope_type"}
    assert np.allclose(converter_factors(500_000.0, 128, again), factors, rtol=1e-4)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.array([1, 1, 5, 2, 8, 8], dtype=np.float32), r"\(factor 8.0\) fits no Llama 3 RoPE scaling"),
        (np.array([1, 3, 1, 3, 1, 3], dtype=np.float32), "fits no Llama 3 RoPE scaling"),
        (np.array([0.5, 1, 8], dtype=np.float32), "has values from 0.5 to 8.0, divisors of 1 or more expected"),
        (np.ones(8, dtype=np.float32), "has values from 1.0 to 1.0"),
        (np.array([1, np.inf], dtype=np.float32), "to inf, divisors"),
        (np.array([1, np.nan, 8], dtype=np.float32), "divisors of 1 or more expected"),
        (np.array([], dtype=np.float32), "has values from 1.0 to 1.0"),
    ],
)
def test_factors_of_something_else_are_refused(factors: Values, message: str) -> None:
    with pytest.raises(FileError, match=r"m\.gguf: rope_freqs\.weight .*" + message):
        llama3_scaling(factors, 500_000.0, "m.gguf")


def test_factors_are_read_with_the_file(tmp_path: Path) -> None:
    factors = converter_factors(500_000.0, 16, scaling(8.0, 64))
    found = parameters(tmp_path, {"llama.rope.freq_base": (gb.FLOAT32, 500_000.0)}, factors)
    assert found == {"rope_type": "llama3", "rope_theta": 500_000.0, **scaling(8.0, 64)}


def test_factors_for_another_number_of_dimensions_are_refused(tmp_path: Path) -> None:
    factors = converter_factors(500_000.0, 32, scaling(8.0, 64))
    with pytest.raises(FileError, match=r"has 16 values, 8 expected: llama\.rope\.dimension_count is 16"):
        header = {"llama.rope.freq_base": (gb.FLOAT32, 500_000.0), "llama.rope.dimension_count": (gb.UINT32, 16)}
        parameters(tmp_path, header, factors)


def test_factors_of_a_big_endian_file(tmp_path: Path) -> None:
    factors = converter_factors(20_000.0, 16, scaling(8.0, 64))
    freqs = TensorSpec("rope_freqs.weight", (8,), gb.F32, factors.astype(">f4").tobytes())
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), freqs], endian=">")
    with open_checkpoint(path) as checkpoint:
        assert np.array_equal(rope_factors(checkpoint), factors)


def test_factors_must_be_floats(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"rope_freqs\.weight has type F16, F32 expected"):
        freqs = TensorSpec("rope_freqs.weight", (8,), gb.F16)
        path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), freqs])
        with open_checkpoint(path) as checkpoint:
            rope_parameters(checkpoint)


def test_plain_rope_has_its_base_or_the_default(tmp_path: Path) -> None:
    assert parameters(tmp_path, {}) == {"rope_type": "default", "rope_theta": 20_000.0}
    metadata = small.llama_metadata()
    del metadata["llama.rope.freq_base"]
    with open_checkpoint(small.write_llama(tmp_path / "n.gguf", metadata)) as checkpoint:
        assert rope_parameters(checkpoint) == {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize("theta", [0.0, 1.0, -5.0, 1e31, float("inf"), float("nan")])
def test_absurd_bases_are_refused(tmp_path: Path, theta: float) -> None:
    with pytest.raises((FileError, MetadataError), match=r"llama\.rope\.freq_base"):
        parameters(tmp_path, {"llama.rope.freq_base": (gb.FLOAT32, theta)})


def test_linear_scaling(tmp_path: Path) -> None:
    keys: small.Metadata = {
        "llama.rope.scaling.type": (gb.STRING, "linear"),
        "llama.rope.scaling.factor": (gb.FLOAT32, 4.0),
    }
    assert parameters(tmp_path, keys) == {"rope_type": "linear", "factor": 4.0, "rope_theta": 20_000.0}
    assert parameters(tmp_path, {"llama.rope.scale_linear": (gb.FLOAT32, 2.0)})["factor"] == 2.0
    assert parameters(tmp_path, {"llama.rope.scale_linear": (gb.FLOAT32, 1.0)})["rope_type"] == "default"


def test_yarn_scaling_takes_what_is_there(tmp_path: Path) -> None:
    keys: small.Metadata = {
        "llama.rope.scaling.type": (gb.STRING, "yarn"),
        "llama.rope.scaling.factor": (gb.FLOAT32, 4.0),
    }
    assert parameters(tmp_path, keys) == {"rope_type": "yarn", "factor": 4.0, "rope_theta": 20_000.0}
    keys |= {
        "llama.rope.scaling.original_context_length": (gb.UINT32, 32768),
        "llama.rope.scaling.attn_factor": (gb.FLOAT32, 0.9),
        "llama.rope.scaling.yarn_beta_fast": (gb.FLOAT32, 32.0),
        "llama.rope.scaling.yarn_beta_slow": (gb.FLOAT32, 1.0),
        "llama.rope.scaling.yarn_ext_factor": (gb.FLOAT32, 1.0),
    }
    found = parameters(tmp_path, keys)
    assert found == {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 20_000.0,
        "original_max_position_embeddings": 32768,
        "attention_factor": 0.9,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "extrapolation_factor": 1.0,
    }
    assert isinstance(found["original_max_position_embeddings"], int)
    keys["llama.rope.scaling.yarn_attn_factor"] = (gb.FLOAT32, 1.0)
    assert parameters(tmp_path, keys)["attention_factor"] == 1.0


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_without_its_factor_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(MetadataError, match=r"llama\.rope\.scaling\.factor is missing"):
        parameters(tmp_path, {"llama.rope.scaling.type": (gb.STRING, kind)})


def test_unknown_scaling_asks_for_the_original_config(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="rope scaling type 'longrope' is not supported for llama") as e:
        parameters(tmp_path, {"llama.rope.scaling.type": (gb.STRING, "longrope")})
    assert "--hf-config" in str(e.value.hint)


def test_two_scalings_at_once_are_refused(tmp_path: Path) -> None:
    keys: small.Metadata = {
        "llama.rope.scaling.type": (gb.STRING, "linear"),
        "llama.rope.scaling.factor": (gb.FLOAT32, 4.0),
    }
    with pytest.raises(FileError, match=r"has both rope_freqs\.weight and rope scaling type linear"):
        parameters(tmp_path, keys, converter_factors(20_000.0, 16, scaling(8.0, 64)))


def test_a_part_of_each_head_rotates(tmp_path: Path) -> None:
    assert parameters(tmp_path, {"llama.rope.dimension_count": (gb.UINT32, 8)})["partial_rotary_factor"] == 0.5
    assert "partial_rotary_factor" not in parameters(tmp_path, {"llama.rope.dimension_count": (gb.UINT32, 16)})


def test_layer_types_have_their_own_base(tmp_path: Path) -> None:
    metadata = {key.replace("llama.", "gemma3."): value for key, value in small.llama_metadata().items()}
    metadata |= {
        "general.architecture": (gb.STRING, "gemma3"),
        "gemma3.rope.freq_base": (gb.FLOAT32, 1e6),
        "gemma3.rope.scaling.type": (gb.STRING, "linear"),
        "gemma3.rope.scaling.factor": (gb.FLOAT32, 8.0),
    }
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", metadata)) as checkpoint:
        assert rope_parameters_by_layer_type(checkpoint) == {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        }
    metadata["gemma3.rope.freq_base_swa"] = (gb.FLOAT32, 5000.0)
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", metadata)) as checkpoint:
        local = rope_parameters_by_layer_type(checkpoint)["sliding_attention"]
    assert local == {"rope_type": "default", "rope_theta": 5000.0}


def test_latent_attention_has_deepseek_s_magnitudes(tmp_path: Path) -> None:
    keys: small.Metadata = {
        "llama.rope.scaling.type": (gb.STRING, "yarn"),
        "llama.rope.scaling.factor": (gb.FLOAT32, 40.0),
        "llama.rope.scaling.original_context_length": (gb.UINT32, 4096),
        "llama.rope.scaling.yarn_log_multiplier": (gb.FLOAT32, 0.1),
        "llama.rope.dimension_count": (gb.UINT32, 8),
    }
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | keys)) as checkpoint:
        assert mla_rope_parameters(checkpoint) == {
            "rope_type": "yarn",
            "rope_theta": 20_000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }


@pytest.mark.parametrize("absurd", [{"factor": 0.0}, {"high_freq_factor": 1.0}, {"low_freq_factor": math.inf}])
def test_absurd_scalings_give_some_factors_and_no_error(absurd: dict[str, float]) -> None:
    assert len(llama3_factors(10_000.0, 8, scaling(8.0) | absurd)) == 8
