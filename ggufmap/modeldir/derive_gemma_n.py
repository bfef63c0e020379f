"""Config values of Gemma 3n and Gemma 4: per-layer sizes, sparsity, embeddings per layer.

Source: llama.cpp 0c1e57098 conversion/gemma.py (Gemma3NModel, Gemma4Model).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.rope import rope_factors

_UNROTATED = 1e29


def _rows(blocks: Layout, tensor: str) -> int | None:
    found = blocks.checkpoint.tensors.get(tensor)
    return None if found is None else found.shape[0]


def _intermediate_sizes(blocks: Layout) -> list[JsonValue]:
    """One size per block, whether the header has one for all or a list."""
    metadata, key = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}.feed_forward_length"
    if not metadata.is_array(key):
        return [metadata.integer(key)] * len(blocks.trunk)
    sizes = metadata.integer_list(key)
    if len(sizes) < len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(sizes)} values for {len(blocks.trunk)} blocks")
    return list(sizes[: len(blocks.trunk)])


def _activation_sparsity(blocks: Layout) -> list[JsonValue]:
    """The header has each block's cut in standard deviations; the config the share of activations below it."""
    metadata, key = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}.activation_sparsity_scale"
    if key not in metadata:
        return [0.0] * len(blocks.trunk)
    cuts = [float(str(x)) for x in metadata.numbers(key)]
    if len(cuts) != len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(cuts)} values for {len(blocks.trunk)} blocks")
    return [round(0.5 * math.erfc(-cut / math.sqrt(2)), 6) for cut in cuts]


def _sliding(blocks: Layout) -> list[bool]:
    """Whether each block is a sliding one: Gemma 4's header always says so."""
    key = f"{blocks.checkpoint.architecture}.attention.sliding_window_pattern"
    found = [bool(x) for x in blocks.checkpoint.metadata.numbers(key)]
    if len(found) < len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(found)} values for {len(blocks.trunk)} blocks")
    return found[: len(blocks.trunk)]


def _key_value_heads(blocks: Layout) -> list[int]:
    metadata, key = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}.attention.head_count_kv"
    if not metadata.is_array(key):
        return [metadata.integer(key)] * len(blocks.trunk)
    heads = metadata.integer_list(key)
    if len(heads) < len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(heads)} values for {len(blocks.trunk)} blocks")
    return heads


def _sliding_key_value_heads(blocks: Layout) -> int:
    heads, sliding = _key_value_heads(blocks), _sliding(blocks)
    return next((count for count, x in zip(heads, sliding, strict=False) if x), heads[0])


def _full_layers(blocks: Layout) -> dict[str, JsonValue] | None:
    """What the full blocks have of their own: larger heads, and perhaps fewer of them."""
    heads, usual, found = _key_value_heads(blocks), _sliding_key_value_heads(blocks), {}
    size = blocks.integer("attention.key_length")
    for bid, sliding in enumerate(_sliding(blocks)):
        if not sliding:
            own: dict[str, JsonValue] = {"head_dim": size} if size != blocks.integer("attention.key_length_swa") else {}
            found[str(bid)] = own | ({"num_key_value_heads": heads[bid]} if heads[bid] != usual else {})
    return {bid: own for bid, own in found.items() if own} or None


def _keys_as_values(blocks: Layout) -> bool:
    """Full blocks have no values of their own (those with an earlier block's keys aside)."""
    own = len(blocks.trunk) - blocks.integer("attention.shared_kv_layers", 0)
    full = [bid for bid, sliding in enumerate(_sliding(blocks)) if not sliding and bid < own]
    return bool(full) and not any(f"blk.{bid}.attn_v.weight" in blocks.checkpoint.tensors for bid in full)


def _double_wide(blocks: Layout) -> bool:
    return len({str(size) for size in _intermediate_sizes(blocks)}) > 1


def _vocab_per_layer(blocks: Layout) -> int | None:
    """As the embedding's where there is none per layer: nobody reads it then."""
    return _rows(blocks, "per_layer_token_embd.weight") or _rows(blocks, "token_embd.weight")


def _gemma4_rope(blocks: Layout) -> dict[str, JsonValue]:
    """Full blocks rotate a part of each head: `rope_freqs` has ones for it, and 1e30 for the rest."""
    checkpoint = blocks.checkpoint
    prefix = f"{checkpoint.architecture}.rope."
    full: dict[str, JsonValue] = {
        "rope_type": "default",
        "rope_theta": checkpoint.metadata.number(prefix + "freq_base", 1_000_000.0),
    }
    if "rope_freqs.weight" in checkpoint.tensors:
        factors = rope_factors(checkpoint)
        rotated = int((factors == 1).sum())
        if not bool((factors[:rotated] == 1).all() and (factors[rotated:] >= _UNROTATED).all()):
            raise FileError(f"{checkpoint.path}: rope_freqs.weight is not ones for a part of the head, then 1e30")
        full |= {"rope_type": "proportional", "partial_rotary_factor": rotated / len(factors)}
    local: dict[str, JsonValue] = {
        "rope_type": "default",
        "rope_theta": checkpoint.metadata.number(prefix + "freq_base_swa", 10_000.0),
    }
    return {"full_attention": full, "sliding_attention": local}


DERIVED_GEMMA_N: dict[str, Callable[[Layout], JsonValue]] = {
    "intermediate_sizes": _intermediate_sizes,
    "activation_sparsity": _activation_sparsity,
    "vocab_size_per_layer_input": lambda blocks: _rows(blocks, "per_layer_token_embd.weight"),
    "sliding_key_value_heads": _sliding_key_value_heads,
    "gemma4_full_layers": _full_layers,
    "gemma4_rope_parameters": _gemma4_rope,
    "attention_k_eq_v": _keys_as_values,
    "use_double_wide_mlp": _double_wide,
    "narrowest_mlp": lambda blocks: min(int(str(size)) for size in _intermediate_sizes(blocks)),
    "vocab_size_per_layer": _vocab_per_layer,
    "has_experts": lambda blocks: blocks.integer("expert_count", 0) > 0,
    "laurel_rank": lambda blocks: _rows(blocks, "blk.0.laurel_l.weight"),
}
