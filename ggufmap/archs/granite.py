"""Granite: dense, mixture of experts (with and without a shared one), and the Mamba 2 hybrids of Granite 4.0.

Source: llama.cpp 0c1e57098 conversion/granite.py, src/models/granite*.cpp; vLLM 0.32.0 models granite.py,
granitemoe.py, granitemoeshared.py, granitemoehybrid.py. A GraniteMoeHybrid model without Mamba blocks is written as
`granite` or `granitemoe` and runs as those classes: the computation is the same.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, Variant, assumed, block, derived, header, only
from ggufmap.archs.blocks import (
    BASE_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    GATED_MLP_BIAS,
    PRE_NORMS,
    ROPE_FREQS,
    ROPE_PERMUTED_ATTENTION,
)
from ggufmap.archs.ssm import MAMBA2_CONFIG, MAMBA2_MIXER, moved

_BODY = EMBEDDING + FINAL_NORM + PRE_NORMS

# A model of hybrids' class without Mamba blocks has its key-value heads per block in the header.
_COMMON: tuple[ConfigRow, ...] = (*BASE_CONFIG, derived("num_key_value_heads", "hybrid_kv_heads"), derived("head_dim"))

# Without a scale for attention llama.cpp uses 1/sqrt(head size), transformers 1: that key must be there.
_MULTIPLIERS: tuple[ConfigRow, ...] = (
    header("attention_multiplier", "attention.scale"),
    header("embedding_multiplier", "embedding_scale", fallback=1.0),
    header("residual_multiplier", "residual_scale", fallback=1.0),
    header("logits_scaling", "logit_scale", fallback=1.0),
    *assumed(hidden_act="silu"),
)

GRANITE = Architecture(
    names=("granite",),
    model_type="granite",
    model_class="GraniteForCausalLM",
    rules=_BODY + ROPE_PERMUTED_ATTENTION + GATED_MLP + GATED_MLP_BIAS,
    config=(
        *_COMMON,
        *_MULTIPLIERS,
        derived("rope_parameters"),
        derived("attention_bias", "output_bias"),
        derived("mlp_bias"),
    ),
    skips=ROPE_FREQS,
)


def _gate_up(suffix: str, module: str) -> Rule:
    """One projection in the checkpoint, gate above up (of each expert)."""
    parts = tuple(f"blk.{{bid}}.ffn_{part}{suffix}.weight" for part in ("gate", "up"))
    return Rule(parts, (f"model.layers.{{bid}}.{module}.input_linear.weight",), "join_rows")


_EXPERTS: tuple[Rule, ...] = (
    block("ffn_gate_inp.weight", "block_sparse_moe.router.layer.weight"),
    _gate_up("_exps", "block_sparse_moe"),
    block("ffn_down_exps.weight", "block_sparse_moe.output_linear.weight"),
)
_SHARED: tuple[Rule, ...] = (
    _gate_up("_shexp", "shared_mlp"),
    block("ffn_down_shexp.weight", "shared_mlp.output_linear.weight"),
)
_ONLY_SHARED: tuple[Rule, ...] = (
    _gate_up("", "shared_mlp"),
    block("ffn_down.weight", "shared_mlp.output_linear.weight"),
)
"""A hybrid without experts: its one MLP is the shared one."""

_SHARED_SIZE = "expert_shared_feed_forward_length"
_MOE_CONFIG: tuple[ConfigRow, ...] = (
    header("num_local_experts", "expert_count", fallback=0),
    header("num_experts_per_tok", "expert_used_count", fallback=0),
    header("shared_intermediate_size", _SHARED_SIZE, optional=True),
)

GRANITE_MOE = Architecture(
    names=("granitemoe",),
    model_type="granitemoe",
    model_class="GraniteMoeForCausalLM",
    variants=(Variant("shared_expert", "granitemoeshared", "GraniteMoeSharedForCausalLM"),),
    rules=_BODY + ROPE_PERMUTED_ATTENTION + _EXPERTS + only(_SHARED, f"has:{_SHARED_SIZE}"),
    config=(*_COMMON, *_MULTIPLIERS, *_MOE_CONFIG, derived("rope_parameters"), *assumed(attention_bias=False)),
    skips=ROPE_FREQS,
)

GRANITE_HYBRID = Architecture(
    names=("granitehybrid",),
    model_type="granitemoehybrid",
    model_class="GraniteMoeHybridForCausalLM",
    rules=_BODY
    + only(ROPE_PERMUTED_ATTENTION, "softmax_attention")
    + only(moved(MAMBA2_MIXER, ".mixer.", ".mamba."), "linear_attention")
    + only(_EXPERTS, "moe")
    + only(_SHARED, "moe", f"has:{_SHARED_SIZE}")
    + only(_ONLY_SHARED, "dense"),
    config=(
        *BASE_CONFIG,
        *_MULTIPLIERS,
        *_MOE_CONFIG,
        *MAMBA2_CONFIG,
        derived("num_key_value_heads", "hybrid_kv_heads"),
        derived("layer_types", "mamba_layer_types"),
        derived("position_embedding_type"),
        derived("rope_parameters"),
        derived("attention_bias", "hybrid_attention_bias"),
        *assumed(mamba_chunk_size=256),
    ),
    skips=ROPE_FREQS,
)

_SINKS = (block("attn_sinks.weight", "self_attn.sinks"),)
_FUSED_EXPERTS: tuple[Rule, ...] = (
    block("ffn_gate_inp.weight", "block_sparse_moe.router.weight"),
    block("ffn_gate_up_exps.weight", "block_sparse_moe.experts.gate_up_proj"),
    block("ffn_down_exps.weight", "block_sparse_moe.experts.down_proj"),
)
_FUSED_SHARED: tuple[Rule, ...] = (
    block("ffn_up_shexp.weight", "shared_mlp.input_linear.weight"),
    block("ffn_down_shexp.weight", "shared_mlp.output_linear.weight"),
)
_SWA_CONFIG: tuple[ConfigRow, ...] = (
    *_COMMON,
    *_MULTIPLIERS,
    header("sliding_window", "attention.sliding_window"),
    derived("layer_types", "granite_layer_types"),
    derived("layer_rope_theta"),
    derived("rope_parameters"),
    derived("attention_bias", "output_bias"),
)

GRANITE_SWA = Architecture(
    names=("granite_swa",),
    model_type="granite_swa",
    model_class="GraniteSWAForCausalLM",
    variants=(Variant("experts", "granitemoe_swa", "GraniteMoeSWAForCausalLM"),),
    rules=_BODY
    + ROPE_PERMUTED_ATTENTION
    + _SINKS
    + only(GATED_MLP + GATED_MLP_BIAS, "dense")
    + only(_FUSED_EXPERTS, "moe")
    + only(_FUSED_SHARED, "moe", f"has:{_SHARED_SIZE}"),
    config=(*_SWA_CONFIG, *_MOE_CONFIG, derived("mlp_bias")),
    skips=ROPE_FREQS,
)
