"""Derived config values that one family alone needs: DBRX, PLaMo 3."""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.derive_classic import sliding_layer_types


def _number(blocks: Layout, key: str, default: float | None = None) -> float:
    value: float = blocks.checkpoint.metadata.number(f"{blocks.checkpoint.architecture}.{key}", default)
    return value


def _dbrx_attention(blocks: Layout) -> dict[str, JsonValue]:
    return {
        "attn_pdrop": 0.0,
        "clip_qkv": _number(blocks, "attention.clamp_kqv"),
        "kv_n_heads": blocks.integer("attention.head_count_kv"),
        "rope_theta": _number(blocks, "rope.freq_base"),
    }


def _dbrx_experts(blocks: Layout) -> dict[str, JsonValue]:
    return {
        "ffn_act_fn": {"name": "silu"},
        "ffn_hidden_size": blocks.integer("feed_forward_length"),
        "moe_num_experts": blocks.integer("expert_count"),
        "moe_top_k": blocks.integer("expert_used_count"),
        "hidden_size": blocks.integer("embedding_length"),
        "moe_normalize_expert_weights": 1.0,  # as llama.cpp's graph and vLLM's class do
        "moe_jitter_eps": None,
        "moe_loss_weight": 0.01,
    }


def _window_per_layer(blocks: Layout) -> list[JsonValue]:
    """The window of each sliding layer, null for the full ones."""
    window = blocks.integer("attention.sliding_window", 0)
    kinds = sliding_layer_types(1)(blocks)
    assert isinstance(kinds, list)
    return [window if kind == "sliding_attention" else None for kind in kinds]


DERIVED_SINGLE: dict[str, Callable[[Layout], JsonValue]] = {
    "dbrx_attention": _dbrx_attention,
    "dbrx_experts": _dbrx_experts,
    "sliding_layer_types_1": sliding_layer_types(1),
    "window_per_layer": _window_per_layer,
}
