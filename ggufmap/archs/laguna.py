"""Laguna (poolside): gated attention, a head count per block, RoPE by kind of block, biased sigmoid routing.

Source: llama.cpp 0c1e57098 conversion/laguna.py, src/models/laguna.cpp; vLLM 0.32.0 model_executor/models/laguna.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, block, derived, header, only, renamed, weights, without
from ggufmap.archs.blocks import (
    ATTENTION,
    BASE_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    QK_NORM,
    SHARED_EXPERTS,
)

LAGUNA = Architecture(
    names=("laguna",),
    model_type="laguna",
    model_class="LagunaForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + QK_NORM
    + PRE_NORMS
    + weights((("attn_gate", "self_attn.g_proj"),))
    + only(GATED_MLP, "dense")
    + only(EXPERTS, "moe")
    + only(renamed(SHARED_EXPERTS, ".shared_experts.", ".shared_expert."), "moe")
    + only((block("exp_probs_b.bias", "mlp.experts.e_score_correction_bias"),), "moe"),
    config=(
        *without(BASE_CONFIG, "num_attention_heads"),
        derived("num_attention_heads", "first_head_count"),
        derived("num_attention_heads_per_layer", "head_counts"),
        header("num_key_value_heads", "attention.head_count_kv"),
        header("head_dim", "attention.key_length"),
        header("sliding_window", "attention.sliding_window", fallback=0),
        derived("layer_types", "first_of_4_full"),
        derived("rope_parameters", "laguna_rope"),
        derived("gating", "laguna_gating"),
        derived("mlp_layer_types"),
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        header("moe_routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        # llama.cpp's graph has neither of the two.
        *assumed(moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0),
        *assumed(hidden_act="silu", attention_bias=False),
    ),
)
