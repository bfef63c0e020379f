"""Kimi Linear: Kimi delta attention with a multi-head latent attention block now and then, DeepSeek's style of experts.

Source: llama.cpp 0c1e57098 conversion/kimi_linear.py, src/models/kimi-linear.cpp; vLLM 0.32.0 vllm/models/kimi_k3,
transformers_utils/configs/kimi_linear.py (the config's keys). The MLA blocks have no RoPE.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, weights, without
from ggufmap.archs.blocks import (
    BASE_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    MLA,
    MLA_CONFIG,
    PRE_NORMS,
)
from ggufmap.archs.glm import KDA

_MOE: tuple[Rule, ...] = (
    block("ffn_gate_inp.weight", "block_sparse_moe.gate.weight"),
    block("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
    *(
        block(f"ffn_{part}_exps.weight", f"block_sparse_moe.experts.{{eid}}.{name}.weight", "experts")
        for part, name in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
    ),
    *weights(
        tuple((f"ffn_{part}_shexp", f"block_sparse_moe.shared_experts.{part}_proj") for part in ("gate", "up", "down"))
    ),
)

KIMI_LINEAR = Architecture(
    names=("kimi-linear",),
    model_type="kimi_linear",
    model_class="KimiLinearForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + PRE_NORMS
    + only(MLA, "softmax_attention")
    + only(KDA, "linear_attention")
    + only(GATED_MLP, "dense")
    + only(_MOE, "moe"),
    config=(
        *without(BASE_CONFIG, "max_position_embeddings"),
        header("model_max_length", "context_length"),
        header("max_position_embeddings", "context_length"),
        header("num_key_value_heads", "attention.head_count"),
        *MLA_CONFIG,
        derived("head_dim", "hidden_per_head"),
        derived("linear_attn_config", "kimi_linear_attn_config"),
        derived("rope_parameters", "mla_rope_parameters"),
        header("num_experts", "expert_count"),
        header("num_experts_per_token", "expert_used_count"),
        header("num_shared_experts", "expert_shared_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("first_k_dense_replace", "leading_dense_block_count", fallback=0),
        header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("moe_renormalize", "norm_topk_prob"),
        derived("moe_router_activation_func", "scoring_func"),
        derived("num_expert_group", "n_group"),
        derived("topk_group"),
        *assumed(hidden_act="silu", mla_use_nope=True, moe_layer_freq=1, use_grouped_topk=True),
    ),
)
