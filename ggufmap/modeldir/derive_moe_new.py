"""Derived config values of GPT-OSS, Llama 4, Ministral 3 and their like."""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.rope import rope_parameters

_CHUNK = 8192
_NO_QK_NORM_EXPERTS = 128  # Llama 4 Maverick (llama.cpp src/models/llama4.cpp, use_kq_norm)


def _untruncated_rope(blocks: Layout) -> dict[str, JsonValue]:
    """GPT-OSS does not round the ends of YaRN's ramp; no header says so."""
    found = rope_parameters(blocks.checkpoint)
    return {**found, "truncate": False} if found["rope_type"] == "yarn" else found


def _mistral3_rope(blocks: Layout) -> dict[str, JsonValue]:
    """YaRN with both magnitude scales, and the scale of the attention temperature (conversion/mistral3.py)."""
    metadata, prefix = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}."
    found = rope_parameters(blocks.checkpoint)
    if blocks.has("rope.scaling.yarn_log_multiplier"):
        scale = metadata.number(prefix + "rope.scaling.yarn_log_multiplier")
        found.update({"mscale": scale, "mscale_all_dim": scale})
    if blocks.has("attention.temperature_scale"):
        found["llama_4_scaling_beta"] = metadata.number(prefix + "attention.temperature_scale")
    return found


def _chunked(blocks: Layout) -> bool:
    """Llama 4 without chunks (MobileLLM) says so by a window of 0 (src/models/llama4.cpp)."""
    return blocks.integer("attention.sliding_window", _CHUNK) != 0


def _no_rope_layers(blocks: Layout) -> list[JsonValue]:
    """1 where the layer has RoPE: all but every fourth, or all."""
    return [int(not _chunked(blocks) or (bid + 1) % 4 != 0) for bid in blocks.trunk]


def _llama4_layer_types(blocks: Layout) -> list[JsonValue]:
    return ["chunked_attention" if x and _chunked(blocks) else "full_attention" for x in _no_rope_layers(blocks)]


def _routed_layers(blocks: Layout) -> list[JsonValue]:
    return [bid for bid in blocks.trunk if f"blk.{bid}.ffn_gate_inp.weight" in blocks.checkpoint.tensors]


DERIVED_MOE_NEW: dict[str, Callable[[Layout], JsonValue]] = {
    "untruncated_rope": _untruncated_rope,
    "mistral3_rope": _mistral3_rope,
    "attention_chunk_size": lambda blocks: _CHUNK if _chunked(blocks) else None,
    "no_rope_layers": _no_rope_layers,
    "llama4_layer_types": _llama4_layer_types,
    "llama4_qk_norm": lambda blocks: blocks.integer("expert_count", 0) != _NO_QK_NORM_EXPERTS,
    "routed_layers": _routed_layers,
}
