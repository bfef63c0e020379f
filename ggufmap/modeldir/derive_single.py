"""Derived config values that one family alone needs, from DBRX to DeepSeek V4."""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.derive_classic import sliding_layer_types
from ggufmap.modeldir.rope import mla_rope_parameters

_PLAMO_PERIOD = 8  # llama.cpp src/models/plamo3.cpp


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
    kinds = sliding_layer_types(_PLAMO_PERIOD)(blocks)
    assert isinstance(kinds, list)
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _head_counts(blocks: Layout) -> list[JsonValue]:
    """The query heads of each block: a list in the header, or one number for all."""
    metadata, key = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}.attention.head_count"
    if not metadata.is_array(key):
        return [metadata.integer(key) for _ in blocks.trunk]
    counts = metadata.integer_list(key)
    if len(counts) < len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(counts)} values for {len(blocks.trunk)} blocks")
    return list(counts[: len(blocks.trunk)])


def _first_of_4_full(blocks: Layout) -> JsonValue:
    """Full, then three sliding, where the header has no list (llama.cpp src/models/laguna.cpp)."""
    key = f"{blocks.checkpoint.architecture}.attention.sliding_window_pattern"
    if blocks.checkpoint.metadata.is_array(key) or not blocks.integer("attention.sliding_window", 0):
        return sliding_layer_types(0)(blocks)
    return ["full_attention" if bid % 4 == 0 else "sliding_attention" for bid in blocks.trunk]


def _laguna_rope(blocks: Layout) -> dict[str, JsonValue]:
    """Full blocks scale and turn a part of each head, sliding ones have a base and a part of their own."""
    size = blocks.integer("attention.key_length")
    full = mla_rope_parameters(blocks.checkpoint)  # that is, without the part, which needs one head count
    theta = float(str(full["rope_theta"]))
    parts = [blocks.integer(f"rope.dimension_count{kind}", size) / size for kind in ("", "_swa")]
    sliding: dict[str, JsonValue] = {"rope_type": "default", "rope_theta": _number(blocks, "rope.freq_base_swa", theta)}
    return {
        "full_attention": {**full, "partial_rotary_factor": parts[0]},
        "sliding_attention": {**sliding, "partial_rotary_factor": parts[1]},
    }


def _laguna_gating(blocks: Layout) -> JsonValue:
    """One gate per head (true), or one per value of each head."""
    gate, head_count = blocks.checkpoint.tensors.get("blk.0.attn_gate.weight"), _head_counts(blocks)[0]
    if gate is None:
        return False
    return True if gate.shape[0] == head_count else "per-element"


def _routed(blocks: Layout) -> list[int]:
    return [bid for bid in blocks.blocks(("routed",)) if bid in blocks.trunk]


def _first_routed(blocks: Layout) -> int:
    """The header does not say how many blocks are dense (conversion/hunyuan.py): the routers do."""
    return min(_routed(blocks), default=len(blocks.trunk))


def _mlp_types(blocks: Layout) -> list[JsonValue]:
    routed = _routed(blocks)
    return ["sparse" if bid in routed else "dense" for bid in blocks.trunk]


def _shared_expert_multiple(blocks: Layout) -> int:
    """How many experts the shared ones are as large as."""
    return blocks.integer("expert_shared_feed_forward_length") // max(blocks.integer("expert_feed_forward_length"), 1)


def _layer_group_size(blocks: Layout) -> int:
    """The distance of the blocks with full attention; those behind the last whole group are full as well."""
    full = [bid for bid in blocks.trunk if bid not in blocks.linear]
    size = full[0] + 1 if full else len(blocks.trunk) + 1
    rest = len(blocks.trunk) // size * size
    if full != [bid for bid in blocks.trunk if (bid + 1) % size == 0 or bid >= rest]:
        raise FileError(f"{blocks.checkpoint.path}: blocks {full} with full attention are in no groups of {size}")
    return size


def _prefix_lm(blocks: Layout) -> bool:
    return blocks.checkpoint.metadata.boolean(f"{blocks.checkpoint.architecture}.hrm.prefix_lm", False)


def _minimax_sparse_attention(blocks: Layout) -> dict[str, JsonValue]:
    """Which blocks have an index, and its sizes. The converter drops what every model has alike."""
    indexed = blocks.blocks(("indexed",))
    frequency: list[JsonValue] = [int(bid in indexed) for bid in blocks.trunk]
    return {
        "use_sparse_attention": True,
        "sparse_index_dim": blocks.integer("attention.indexer.key_length"),
        "sparse_num_index_heads": blocks.integer("attention.indexer.head_count"),
        "sparse_topk_blocks": blocks.integer("attention.indexer.top_k"),
        "sparse_block_size": blocks.integer("attention.indexer.block_size"),
        "sparse_local_block": blocks.integer("attention.indexer.local_blocks"),
        "sparse_init_block": 0,
        "sparse_score_type": "max",
        "sparse_disable_index_value": frequency,
        "sparse_attention_freq": frequency,
    }


def _hy_layer_types(blocks: Layout) -> list[JsonValue]:
    """All sparse, or none: blocks without an indexer of their own use another's."""
    kind = "deepseek_sparse_attention" if blocks.has("attention.indexer.head_count") else "full_attention"
    return [kind for _ in blocks.trunk]


def _hy_gating_type(blocks: Layout) -> str:
    """A gate per head, or one per value of each head."""
    gate = blocks.checkpoint.tensors.get("blk.0.attn_gate.weight")
    per_head = gate is not None and gate.shape[0] == blocks.integer("attention.head_count")
    return "headwise" if per_head else "elementwise"


def _compress_ratios(blocks: Layout) -> list[JsonValue]:
    key = f"{blocks.checkpoint.architecture}.attention.compress_ratios"
    ratios = blocks.checkpoint.metadata.integer_list(key)
    if len(ratios) < len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(ratios)} values for {len(blocks.trunk)} blocks")
    return list(ratios)


def _published_rope_scaling(blocks: Layout) -> dict[str, JsonValue]:
    """DeepSeek V4's own spelling; vLLM's config class puts it where `rope_parameters` are, and has the bases apart."""
    found = mla_rope_parameters(blocks.checkpoint)
    return {"type": found.pop("rope_type"), **{key: value for key, value in found.items() if key != "rope_theta"}}


DERIVED_SINGLE: dict[str, Callable[[Layout], JsonValue]] = {
    "dbrx_attention": _dbrx_attention,
    "dbrx_experts": _dbrx_experts,
    "sliding_layer_types_8": sliding_layer_types(_PLAMO_PERIOD),
    "window_per_layer": _window_per_layer,
    "head_counts": _head_counts,
    "first_head_count": lambda blocks: _head_counts(blocks)[0],
    "first_of_4_full": _first_of_4_full,
    "laguna_rope": _laguna_rope,
    "laguna_gating": _laguna_gating,
    "first_routed_layer": _first_routed,
    "mlp_types_by_router": _mlp_types,
    "shared_expert_multiple": _shared_expert_multiple,
    "layer_group_size": _layer_group_size,
    "prefix_lm": _prefix_lm,
    "minimax_sparse_attention": _minimax_sparse_attention,
    "compress_ratios": _compress_ratios,
    "hy_gating_type": _hy_gating_type,
    "hy_layer_types": _hy_layer_types,
    "published_rope_scaling": _published_rope_scaling,
}
