"""Derived config values of GPT-OSS, Llama 4, Ministral 3 and their like."""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.rope import llama3_scaling, rope_factors, rope_parameters

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


def _sliding(blocks: Layout) -> list[bool]:
    """Which blocks slide, the draft's included, by the header's list."""
    metadata, arch = blocks.checkpoint.metadata, blocks.checkpoint.architecture
    key, count = f"{arch}.attention.sliding_window_pattern", len(blocks.trunk) + len(blocks.draft)
    pattern = [bool(x) for x in metadata.numbers(key)]
    if len(pattern) < count:
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(pattern)} values for {count} blocks")
    return pattern[:count]


def _hybrid_pattern(blocks: Layout) -> list[JsonValue]:
    return [int(slides) for slides in _sliding(blocks)[: len(blocks.trunk)]]


def _heads(key: str, sliding: bool) -> Callable[[Layout], JsonValue]:
    """The head count of the sliding (or the full) blocks: one for all of a kind, in a list per block."""

    def of(blocks: Layout) -> JsonValue:
        metadata, name = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}.attention.{key}"
        if not metadata.is_array(name):
            return metadata.integer(name)
        counts = metadata.integer_list(name)
        if len(counts) < len(_sliding(blocks)):
            raise FileError(f"{blocks.checkpoint.path}: {name} has only {len(counts)} values")
        found = {heads for heads, slides in zip(counts, _sliding(blocks), strict=False) if slides is sliding}
        if len(found) > 1:
            raise FileError(f"{blocks.checkpoint.path}: {name} differs between blocks of one kind; vLLM takes one")
        return found.pop() if found else max(counts)

    return of


def _number(blocks: Layout, key: str, default: float) -> float:
    return blocks.checkpoint.metadata.number(f"{blocks.checkpoint.architecture}.{key}", default)


def _rotated(blocks: Layout) -> float:
    """The part of each head that is rotated."""
    size = blocks.integer("attention.key_length")
    return blocks.integer("rope.dimension_count", size) / size


def _moe_layer_freq(blocks: Layout) -> list[JsonValue]:
    return [int(bid in _routed_layers(blocks)) for bid in blocks.trunk]


def _has_sinks(sliding: bool) -> Callable[[Layout], JsonValue]:
    def of(blocks: Layout) -> JsonValue:
        pattern = _sliding(blocks)
        return any(
            f"blk.{bid}.attn_sinks.weight" in blocks.checkpoint.tensors
            for bid in blocks.trunk
            if pattern[bid] is sliding
        )

    return of


def _step_thetas(blocks: Layout) -> list[JsonValue]:
    full = _number(blocks, "rope.freq_base", 10000.0)
    local = _number(blocks, "rope.freq_base_swa", full)
    return [local if slides else full for slides in _sliding(blocks)]


def _step_rope_scaling(blocks: Layout) -> JsonValue:
    """Llama 3 scaling of the full blocks, which turn half of each head: `rope_freqs` is filled up with ones."""
    if "rope_freqs.weight" not in blocks.checkpoint.tensors:
        return None
    factors = rope_factors(blocks.checkpoint)[: blocks.integer("attention.key_length") // 4]
    return llama3_scaling(factors, _number(blocks, "rope.freq_base", 10000.0), str(blocks.checkpoint.path))


def _clamps(key: str) -> Callable[[Layout], JsonValue]:
    def of(blocks: Layout) -> JsonValue:
        name = f"{blocks.checkpoint.architecture}.{key}"
        if name not in blocks.checkpoint.metadata:
            return None
        return [float(str(x)) for x in blocks.checkpoint.metadata.numbers(name)]

    return of


def _other_attention(blocks: Layout) -> dict[str, JsonValue]:
    """Step 3.5's setting for the sliding blocks."""
    return {
        "attention_type": "sliding_attention",
        "num_attention_heads": _heads("head_count", True)(blocks),
        "num_attention_groups": _heads("head_count_kv", True)(blocks),
        "head_dim": blocks.integer("attention.key_length"),
    }


DERIVED_MOE_NEW: dict[str, Callable[[Layout], JsonValue]] = {
    "untruncated_rope": _untruncated_rope,
    "mistral3_rope": _mistral3_rope,
    "attention_chunk_size": lambda blocks: _CHUNK if _chunked(blocks) else None,
    "no_rope_layers": _no_rope_layers,
    "llama4_layer_types": _llama4_layer_types,
    "llama4_qk_norm": lambda blocks: blocks.integer("expert_count", 0) != _NO_QK_NORM_EXPERTS,
    "routed_layers": _routed_layers,
    "hybrid_layer_pattern": _hybrid_pattern,
    "full_head_count": _heads("head_count", False),
    "full_head_count_kv": _heads("head_count_kv", False),
    "sliding_head_count": _heads("head_count", True),
    "sliding_head_count_kv": _heads("head_count_kv", True),
    "rotated_part": _rotated,
    "moe_layer_freq": _moe_layer_freq,
    "sliding_sinks": _has_sinks(True),
    "full_sinks": _has_sinks(False),
    "step_thetas": _step_thetas,
    "step_rope_scaling": _step_rope_scaling,
    "step_layer_types": lambda blocks: ["sliding_attention" if x else "full_attention" for x in _sliding(blocks)],
    "step_partial_rotary": lambda blocks: [1.0 if x else 0.5 for x in _sliding(blocks)],
    "attention_other_setting": _other_attention,
    "moe_layers_enum": lambda blocks: ",".join(str(bid) for bid in _routed_layers(blocks)),
    "swiglu_limits": _clamps("swiglu_clamp_exp"),
    "swiglu_limits_shared": _clamps("swiglu_clamp_shexp"),
    "head_wise_gate": lambda blocks: "blk.0.attn_gate.weight" in blocks.checkpoint.tensors,
}
