"""RoPE: header keys and the `rope_freqs` tensor to `rope_parameters`, and the check of one against the other.

Sources: llama.cpp 0c1e57098 conversion/base.py and conversion/llama.py (generate_extra_tensors), src/llama-hparams;
transformers 5.19 modeling_rope_utils.py for the keys of `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError, UnsupportedError

_LENGTH = "original_max_position_embeddings"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, _LENGTH: 8192}
_TOLERANCE = 1e-4
_LOCAL_THETA = 10_000.0
_DEFAULT_THETA = 10_000.0
_MAX_THETA = 1e30
_FREQS = "rope_freqs.weight"


def rope_parameters(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """`rope_parameters` for a model with one kind of layer.

    Raises FileError when a scaling type lacks its factor or `rope_freqs` fits no known scaling.
    """
    found: dict[str, JsonValue] = {
        "rope_type": "default",
        "rope_theta": _theta(checkpoint, "freq_base", _DEFAULT_THETA),
    }
    found.update(_partial(checkpoint))
    found.update(_scaling(checkpoint))
    if _FREQS in checkpoint.tensors:
        if found["rope_type"] != "default":
            raise FileError(f"{checkpoint.path}: has both {_FREQS} and rope scaling type {found['rope_type']}")
        factors = rope_factors(checkpoint)
        _check_length(checkpoint, len(factors))
        found.update(llama3_scaling(factors, float(str(found["rope_theta"])), str(checkpoint.path)))
    return found


def _check_length(checkpoint: Checkpoint, factors: int) -> None:
    """One factor for each pair of dimensions that rotates."""
    key = f"{checkpoint.architecture}.rope.dimension_count"
    rotary = checkpoint.metadata.integer(key, 2 * factors)
    if 2 * factors != rotary:
        raise FileError(f"{checkpoint.path}: {_FREQS} has {factors} values, {rotary // 2} expected: {key} is {rotary}")


def rope_parameters_by_layer_type(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """`rope_parameters` for full and sliding layers; scaling is for the full ones (llama.cpp src/models/gemma3.cpp)."""
    local: dict[str, JsonValue] = {
        "rope_type": "default",
        "rope_theta": _theta(checkpoint, "freq_base_swa", _LOCAL_THETA),
    }
    return {"full_attention": rope_parameters(checkpoint), "sliding_attention": local}


def mla_rope_parameters(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """`rope_parameters` for MLA: all of the RoPE part rotates, and YaRN has DeepSeek's two magnitude scales.

    The header holds 0.1 x `mscale_all_dim` as the log multiplier (conversion/deepseek.py); every published model has
    an equal `mscale`.
    """
    meta, prefix = checkpoint.metadata, f"{checkpoint.architecture}.rope."
    found: dict[str, JsonValue] = {
        "rope_type": "default",
        "rope_theta": _theta(checkpoint, "freq_base", _DEFAULT_THETA),
    }
    found.update(_scaling(checkpoint))
    if prefix + "scaling.yarn_log_multiplier" in meta:
        scale = round(meta.number(prefix + "scaling.yarn_log_multiplier") * 10, 6)
        found.update({"mscale": scale, "mscale_all_dim": scale})
    return found


def _theta(checkpoint: Checkpoint, key: str, default: float) -> float:
    name = f"{checkpoint.architecture}.rope.{key}"
    theta = checkpoint.metadata.number(name, default)
    if not 1 < theta < _MAX_THETA:
        raise FileError(f"{checkpoint.path}: {name} is {theta}, a number above 1 is expected")
    return theta


def rope_factors(checkpoint: Checkpoint, name: str = _FREQS) -> npt.NDArray[np.float32]:
    """The values of `rope_freqs.weight` (or another such tensor), shape (rotary dimensions / 2,)."""
    tensor = checkpoint.tensors[name]
    if tensor.type.name != "F32":
        raise FileError(f"{checkpoint.path}: {name} has type {tensor.type.name}, F32 expected")
    raw = np.frombuffer(checkpoint.read(tensor), dtype=np.dtype(tensor.order + "f4"))
    return raw.astype(np.float32)


def llama3_factors(theta: float, half: int, scaling: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """The frequency divisors that Llama 3 scaling gives for `half` frequencies of base `theta`."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    with np.errstate(all="ignore"):  # a config may say anything; what comes out then equals no factors
        wavelength = 2 * math.pi / theta ** (-np.arange(half) / half)
        smooth = np.clip((original / wavelength - low) / np.float64(high - low), 0.0, 1.0)
        blended: npt.NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    return blended


def llama3_scaling(factors: npt.NDArray[np.float32], theta: float, file: str) -> dict[str, JsonValue]:
    """The Llama 3 scaling whose divisors `factors` are: the published constants, else the ones fitted to the ramp.

    Raises FileError when no Llama 3 scaling gives these factors.
    """
    low, factor = float(factors.min(initial=1.0)), float(factors.max(initial=1.0))
    if not np.isfinite(factors).all() or low < 1 or factor <= 1:
        raise FileError(f"{file}: {_FREQS} has values from {low} to {factor}, divisors of 1 or more expected")
    for scaling in _candidates(factors.astype(np.float64), theta, factor):
        if matches_llama3(factors, theta, scaling):
            return {"rope_type": "llama3", **scaling}
    raise FileError(
        f"{file}: {_FREQS} (factor {factor}) fits no Llama 3 RoPE scaling",
        hint="Give the original model's config with --hf-config DIR.",
    )


def matches_llama3(factors: npt.NDArray[np.float32], theta: float, scaling: Mapping[str, float]) -> bool:
    """Whether `scaling` gives the divisors that the file stores."""
    return np.allclose(llama3_factors(theta, len(factors), scaling), factors, rtol=_TOLERANCE)


def _candidates(factors: npt.NDArray[np.float64], theta: float, factor: float) -> Iterator[dict[str, float]]:
    """Scalings to try: the published one, its constants with the context length solved for, and the ramp's own line.

    On the ramp `smooth` is linear in the frequency: one point gives the length, two give the constants as well (up to
    a common scale, which low_freq_factor 1 fixes). Without a point on the ramp any length between the ends will do.
    """
    yield _LLAMA3 | {"factor": factor}
    per_turn = theta ** (-np.arange(len(factors)) / len(factors)) / (2 * math.pi)
    on_ramp = np.flatnonzero((factors > 1 + 1e-6) & (factors < factor - 1e-6))
    if not len(on_ramp):
        for high in (_LLAMA3["high_freq_factor"], 1.0):  # Llama 4 Scout has no ramp: low and high are 1
            scaling = _LLAMA3 | {"factor": factor, "high_freq_factor": high}
            yield from (scaling | {_LENGTH: 2**power} for power in range(4, 25))
        return
    smooth = (1 / factors - 1 / factor) / (1 - 1 / factor)
    first, last = on_ramp[0], on_ramp[-1]
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    yield _LLAMA3 | {"factor": factor, _LENGTH: round((smooth[first] * (high - low) + low) / per_turn[first])}
    if first == last:
        return
    slope = (smooth[first] - smooth[last]) / (per_turn[first] - per_turn[last])
    offset = slope * per_turn[first] - smooth[first]
    if offset > 0 and slope > 0:
        solved = {"low_freq_factor": 1.0, "high_freq_factor": round(1 + 1 / offset, 4), _LENGTH: round(slope / offset)}
        yield {"factor": factor, **solved}


def _partial(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """`partial_rotary_factor` when only a part of each head is rotated."""
    meta, arch = checkpoint.metadata, checkpoint.architecture
    heads = meta.integer(f"{arch}.attention.head_count")
    size = meta.integer(f"{arch}.attention.key_length", meta.integer(f"{arch}.embedding_length") // max(heads, 1))
    rotated = meta.integer(f"{arch}.rope.dimension_count", size)
    return {} if rotated == size or not size else {"partial_rotary_factor": rotated / size}


def _scaling(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    meta, prefix = checkpoint.metadata, f"{checkpoint.architecture}.rope."
    kind = meta.string(prefix + "scaling.type", "none")
    if kind == "none":
        # Old files have a bare linear factor.
        linear = meta.number(prefix + "scale_linear", 1.0)
        return {} if linear == 1 else {"rope_type": "linear", "factor": linear}
    if kind == "longrope" and "rope_factors_long.weight" in checkpoint.tensors:
        return {}  # the factors are tensors: modeldir/derive_longrope.py
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(
            f"{checkpoint.path}: rope scaling type {kind!r} is not supported for {checkpoint.architecture}",
            hint="Give the original model's config with --hf-config DIR.",
        )
    found: dict[str, JsonValue] = {"rope_type": kind, "factor": meta.number(prefix + "scaling.factor")}
    if kind == "yarn":
        optional = (
            ("original_max_position_embeddings", "scaling.original_context_length"),
            ("attention_factor", "scaling.attn_factor"),
            ("attention_factor", "scaling.yarn_attn_factor"),  # what the converter writes now
            ("extrapolation_factor", "scaling.yarn_ext_factor"),
            ("beta_fast", "scaling.yarn_beta_fast"),
            ("beta_slow", "scaling.yarn_beta_slow"),
        )
        for key, stored in optional:
            if prefix + stored in meta:
                value = meta.number(prefix + stored)
                found[key] = int(value) if key == "original_max_position_embeddings" else value
    return found
