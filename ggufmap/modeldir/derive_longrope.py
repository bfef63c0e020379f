"""LongRoPE: `rope_factors_long` and `rope_factors_short` are part of the config, not of the model.

Source: llama.cpp 0c1e57098 conversion/phi.py, conversion/minicpm.py (generate_extra_tensors).
"""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.rope import mla_rope_parameters, rope_factors, rope_parameters

_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_ORIGINAL = "original_max_position_embeddings"


def _original_context(checkpoint: Checkpoint) -> int | None:
    key = f"{checkpoint.architecture}.rope.scaling.original_context_length"
    return checkpoint.metadata.integer(key) if key in checkpoint.metadata else None


def longrope_parameters(checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """`rope_parameters`, with the factors where the file has them."""
    return _with_factors(rope_parameters(checkpoint), checkpoint)


def _with_factors(found: dict[str, JsonValue], checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """Raises FileError when one of the two tensors is missing, or they have not equally many factors."""
    tensors = [name in checkpoint.tensors for name in (_LONG, _SHORT)]
    if not any(tensors):
        return found
    if not all(tensors):
        raise FileError(f"{checkpoint.path}: has one of {_LONG} and {_SHORT}, both are needed")
    long, short = (rope_factors(checkpoint, name) for name in (_LONG, _SHORT))
    if len(long) != len(short):
        raise FileError(f"{checkpoint.path}: {len(long)} long and {len(short)} short RoPE factors")
    original = _original_context(checkpoint) or checkpoint.metadata.integer(f"{checkpoint.architecture}.context_length")
    factors: dict[str, JsonValue] = {
        "long_factor": [float(x) for x in long],
        "short_factor": [float(x) for x in short],
    }
    return {**found, "rope_type": "longrope", **factors, _ORIGINAL: original}


def _with_partial(blocks: Layout) -> dict[str, JsonValue]:
    """Phi-3's own: the rotated part is said also where it is the whole."""
    return {"partial_rotary_factor": 1.0, **longrope_parameters(blocks.checkpoint)}


DERIVED_LONGROPE: dict[str, Callable[[Layout], JsonValue]] = {
    "longrope_parameters": lambda blocks: longrope_parameters(blocks.checkpoint),
    "phi3_rope_parameters": _with_partial,
    "minicpm3_rope_parameters": lambda blocks: _with_factors(mla_rope_parameters(blocks.checkpoint), blocks.checkpoint),
    "original_max_position_embeddings": lambda blocks: _original_context(blocks.checkpoint),
}
