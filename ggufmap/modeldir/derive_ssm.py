"""Config values of state-space and hybrid models: named functions over the header and the tensor table.

Source: llama.cpp 0c1e57098 conversion/mamba.py, granite.py, lfm2.py (what the keys hold).
"""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.derive_classic import sliding_layer_types


def _quotient(blocks: Layout, key: str, divisor_key: str) -> int:
    size, divisor = blocks.integer(key), blocks.integer(divisor_key)
    if divisor < 1 or size % divisor:
        raise FileError(f"{blocks.checkpoint.path}: {key} is {size}, not a multiple of {divisor_key} {divisor}")
    return size // divisor


def _any_ends(suffix: str) -> Callable[[Layout], bool]:
    return lambda blocks: any(name.endswith(suffix) for name in blocks.checkpoint.tensors)


def _hybrid_kv_heads(blocks: Layout) -> int:
    """The key-value heads of the blocks that have attention; the header has 0 for the others."""
    key = f"{blocks.checkpoint.architecture}.attention.head_count_kv"
    if not blocks.checkpoint.metadata.is_array(key):
        return blocks.integer("attention.head_count_kv", blocks.integer("attention.head_count"))
    found = {heads for heads in blocks.checkpoint.metadata.integer_list(key) if heads}
    if len(found) != 1:
        raise FileError(f"{blocks.checkpoint.path}: {key} has {sorted(found)}; vLLM takes one number of heads")
    return found.pop()


def _layer_types(linear: str, softmax: str) -> Callable[[Layout], list[JsonValue]]:
    return lambda blocks: [linear if bid in blocks.linear else softmax for bid in blocks.trunk]


def _schedule(found: list[int], blocks: Layout, usual: tuple[int, int]) -> tuple[int, int]:
    """Period and offset of the blocks `found`: the published ones where they fit, else the smallest that do."""
    total = len(blocks.trunk)
    every = (usual, *((period, offset) for period in range(1, total + 1) for offset in range(period)))
    for period, offset in every:
        if [bid for bid in blocks.trunk if bid % period == offset] == found:
            return period, offset
    if not found:
        return total + 1, total
    raise FileError(f"{blocks.checkpoint.path}: blocks {found} are at no fixed distance, as vLLM's class needs them")


def _jamba_attention(blocks: Layout) -> tuple[int, int]:
    return _schedule([bid for bid in blocks.trunk if bid not in blocks.linear], blocks, (8, 4))


def _jamba_experts(blocks: Layout) -> tuple[int, int]:
    return _schedule(blocks.blocks(("routed",)), blocks, (2, 1))


def _position_embedding_type(blocks: Layout) -> str:
    """Granite's converter writes whether there is RoPE as `rope.scaling.finetuned`; llama.cpp's default is yes."""
    key = f"{blocks.checkpoint.architecture}.rope.scaling.finetuned"
    return "rope" if blocks.checkpoint.metadata.boolean(key, True) else "nope"


def _mixer_rms_eps(blocks: Layout) -> float | None:
    """FalconMamba's own; the header has only the one of the other norms. Every published model has this."""
    key = f"{blocks.checkpoint.architecture}.ssm.dt_b_c_rms"
    return 1e-6 if blocks.checkpoint.metadata.boolean(key, False) else None


def _kimi_linear_attn_config(blocks: Layout) -> dict[str, JsonValue]:
    """Kimi delta attention's own dictionary; Kimi Linear counts its layers from 1."""
    return {
        "full_attn_layers": [bid + 1 for bid in blocks.trunk if bid not in blocks.linear],
        "kda_layers": [bid + 1 for bid in blocks.trunk if bid in blocks.linear],
        "head_dim": blocks.integer("kda.head_dim"),
        "num_heads": blocks.integer("attention.head_count"),
        "short_conv_kernel_size": blocks.integer("ssm.conv_kernel"),
    }


def _layer_rope_theta(blocks: Layout) -> list[JsonValue]:
    """Granite's RoPE base per layer: the one base, or 0 (no RoPE) where `attention.rope_pattern` says so."""
    metadata, arch = blocks.checkpoint.metadata, blocks.checkpoint.architecture
    theta, key = metadata.number(f"{arch}.rope.freq_base", 10_000.0), f"{arch}.attention.rope_pattern"
    rotated = [bool(x) for x in metadata.numbers(key)] if metadata.is_array(key) else [True for _ in blocks.trunk]
    if len(rotated) < len(blocks.trunk):
        raise FileError(f"{blocks.checkpoint.path}: {key} has {len(rotated)} values for {len(blocks.trunk)} blocks")
    return [theta if rotated[bid] else 0.0 for bid in blocks.trunk]


def _pattern(blocks: Layout) -> str:
    """Nemotron-H's letter per block: M Mamba, * attention, - MLP, E experts."""
    ff, routed = blocks.blocks(("feed_forward",)), blocks.blocks(("routed",))
    letters = {bid: "M" if bid in blocks.linear else "*" for bid in blocks.trunk}
    letters.update((bid, "E" if bid in routed else "-") for bid in ff if bid in blocks.trunk)
    return "".join(letters.values())


def _hybrid_intermediate_size(blocks: Layout) -> int:
    """The size of the blocks that have an MLP; the header has 0 for the others."""
    key = f"{blocks.checkpoint.architecture}.feed_forward_length"
    if not blocks.checkpoint.metadata.is_array(key):
        return blocks.integer("feed_forward_length")
    found = {size for size in blocks.checkpoint.metadata.integer_list(key) if size}
    if len(found) > 1:
        raise FileError(f"{blocks.checkpoint.path}: {key} has {sorted(found)}; one size is supported")
    return found.pop() if found else 0


DERIVED_SSM: dict[str, Callable[[Layout], JsonValue]] = {
    "mamba_d_head": lambda blocks: _quotient(blocks, "ssm.inner_size", "ssm.time_step_rank"),
    "mamba_expand": lambda blocks: _quotient(blocks, "ssm.inner_size", "embedding_length"),
    "mamba_conv_bias": _any_ends(".ssm_conv1d.bias"),
    "mamba_proj_bias": _any_ends(".ssm_in.bias"),
    "hybrid_attention_bias": _any_ends(".attn_q.bias"),
    "hybrid_kv_heads": _hybrid_kv_heads,
    "mamba_layer_types": _layer_types("mamba", "attention"),
    "conv_layer_types": _layer_types("conv", "full_attention"),
    "router_bias": _any_ends("exp_probs_b.bias"),
    "mamba_norm": _any_ends(".ssm_norm.weight"),
    "jamba_attention_period": lambda blocks: _jamba_attention(blocks)[0],
    "jamba_attention_offset": lambda blocks: _jamba_attention(blocks)[1],
    "jamba_expert_period": lambda blocks: _jamba_experts(blocks)[0],
    "jamba_expert_offset": lambda blocks: _jamba_experts(blocks)[1],
    "hybrid_override_pattern": _pattern,
    "hybrid_intermediate_size": _hybrid_intermediate_size,
    "kimi_linear_attn_config": _kimi_linear_attn_config,
    "hidden_per_head": lambda blocks: blocks.integer("embedding_length") // blocks.integer("attention.head_count"),
    "layer_rope_theta": _layer_rope_theta,
    "granite_layer_types": sliding_layer_types(1),
    "position_embedding_type": _position_embedding_type,
    "mixer_rms_eps": _mixer_rms_eps,
}
