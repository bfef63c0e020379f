"""Llama 4, text part: Scout, Maverick, MobileLLM.

Source: llama.cpp 0c1e57098 conversion/llama.py (Llama4Model: rows are not permuted), src/models/llama4.cpp; vLLM 0.32.0
model_executor/models/llama4.py, which permutes query and key itself.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, renamed, weights, without
from ggufmap.archs.blocks import (
    ATTENTION,
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    ROPE_FREQS,
    SHARED_EXPERTS,
)

_EXPERTS: tuple[Rule, ...] = (
    *weights((("ffn_gate_inp", "feed_forward.router"),)),
    Rule(
        ("blk.{bid}.ffn_gate_exps.weight", "blk.{bid}.ffn_up_exps.weight"),
        ("model.layers.{bid}.feed_forward.experts.gate_up_proj",),
        "stacked_columns",
    ),
    block("ffn_down_exps.weight", "feed_forward.experts.down_proj", "stacked_columns"),
    *renamed(SHARED_EXPERTS, "mlp.shared_experts", "feed_forward.shared_expert"),
)

LLAMA4 = Architecture(
    names=("llama4",),
    model_type="llama4_text",
    model_class="Llama4ForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + PRE_NORMS
    + ATTENTION
    + only(renamed(GATED_MLP, ".mlp.", ".feed_forward."), "unrouted")
    + only(_EXPERTS, "routed"),
    config=(
        *without(COMMON_CONFIG, "intermediate_size"),
        header("intermediate_size", "expert_feed_forward_length"),
        header("intermediate_size_mlp", "feed_forward_length"),
        header("num_local_experts", "expert_count", fallback=0),
        header("num_experts_per_tok", "expert_used_count", fallback=0),
        header("interleave_moe_layer_step", "interleave_moe_layer_step"),
        derived("moe_layers", "routed_layers"),
        derived("attention_chunk_size"),
        derived("no_rope_layers"),
        derived("layer_types", "llama4_layer_types"),
        derived("use_qk_norm", "llama4_qk_norm", guess=True),
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        # llama.cpp src/models/llama4.cpp has the same constants.
        *assumed(
            hidden_act="silu",
            attn_temperature_tuning=True,
            floor_scale=8192,
            attn_scale=0.1,
            no_rope_layer_interval=4,
        ),
    ),
    skips=ROPE_FREQS,
    bf16_only="Llama 4 activations exceed fp16's range (65504)",
)
