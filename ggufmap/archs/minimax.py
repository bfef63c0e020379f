"""MiniMax M2, and MiniMax M3's text model: sparse attention by an index per block of keys.

Source: llama.cpp 0c1e57098 conversion/minimax.py, src/models/minimax-m2.cpp, minimax-m3.cpp; vLLM 0.32.0
model_executor/models/minimax_m2.py, vllm/models/minimax_m3. M3's converter stores all norms plus one.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, block, derived, header, only, renamed, top, weights, without
from ggufmap.archs.blocks import (
    ATTENTION,
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    QK_NORM,
    SHARED_EXPERTS,
    stacked_experts,
)

_EXPERTS = weights((("ffn_gate_inp", "block_sparse_moe.gate"),)) + stacked_experts(
    *(f"block_sparse_moe.experts.{{eid}}.{name}" for name in ("w1", "w3", "w2"))
)
_ROUTER_BIAS = (block("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),)

MINIMAX_M2 = Architecture(
    names=("minimax-m2",),
    model_type="minimax_m2",
    model_class="MiniMaxM2ForCausalLM",
    rules=EMBEDDING + ATTENTION + QK_NORM + PRE_NORMS + FINAL_NORM + _EXPERTS + _ROUTER_BIAS,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("partial_rotary_factor"),
        header("rotary_dim", "rope.dimension_count"),
        header("num_local_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        derived("scoring_func"),
        derived("use_routing_bias", "router_bias"),
        *assumed(hidden_act="silu", use_qk_norm=True, qk_norm_type="per_layer"),
    ),
)

_MINUS_ONE = "add:-1"
_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
)
_INDEX = (("indexer.q_proj", "self_attn.index_q_proj"), ("indexer.k_proj", "self_attn.index_k_proj"))
_INDEX_NORMS = (("indexer.q_norm", "self_attn.index_q_norm"), ("indexer.k_norm", "self_attn.index_k_norm"))

MINIMAX_M3 = Architecture(
    names=("minimax-m3",),
    model_type="minimax_m3_vl",
    model_class="MiniMaxM3SparseForCausalLM",
    text_model_type="minimax_m3_text",
    rules=(
        *EMBEDDING,
        top("output_norm.weight", "model.norm.weight", _MINUS_ONE),
        *ATTENTION,
        *weights(_NORMS, _MINUS_ONE),
        *only(weights(_INDEX) + weights(_INDEX_NORMS, _MINUS_ONE), "indexed"),
        *only(GATED_MLP, "dense"),
        *only(_EXPERTS + _ROUTER_BIAS, "moe"),
        *only(renamed(SHARED_EXPERTS, ".mlp.", ".block_sparse_moe."), "moe"),
    ),
    config=(
        *without(COMMON_CONFIG, "intermediate_size"),
        header("intermediate_size", "expert_feed_forward_length"),
        header("dense_intermediate_size", "feed_forward_length"),
        derived("shared_intermediate_size", "single_shared_expert_size"),
        header("rope_theta", "rope.freq_base"),
        header("rotary_dim", "rope.dimension_count"),
        derived("partial_rotary_factor", "rotated_part"),
        header("num_local_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("n_shared_experts", "expert_shared_count"),
        header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("scoring_func"),
        derived("use_routing_bias", "router_bias"),
        derived("moe_layer_freq"),
        derived("num_mtp_modules", "num_nextn_predict_layers"),
        derived("sparse_attention_config", "minimax_sparse_attention"),
        *assumed(hidden_act="swigluoai", swiglu_alpha=1.702, swiglu_beta=1.0, swiglu_limit=7.0),
        *assumed(use_gemma_norm=True, attention_output_gate=False, use_qk_norm=True, qk_norm_type="per_head"),
    ),
)
"""vLLM's config class keeps the text model's keys below `text_config`, as the published model with its vision tower."""
