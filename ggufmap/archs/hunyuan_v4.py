"""Hunyuan V4 (Hy4): gated MLA with sinks and a shared indexer, independent hyper-connections, clamped experts.

The converter leaves the MTP blocks out.

Source: llama.cpp 0c1e57098 conversion/hy_v4.py, src/models/hy-v4.cpp; vLLM 0.32.0 vllm/models/hy_v4,
transformers_utils/configs/hy_v4.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, top, weights
from ggufmap.archs.blocks import (
    BASE_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    INDEXER,
    MLA,
    MLA_CONFIG,
    PRE_NORMS,
    ROPE_FREQS,
    SHARED_EXPERTS,
)

_PARTS = ("fn", "base", "scale")
_HYPER: tuple[Rule, ...] = tuple(
    block(f"hc_{stored}_{part}.weight", f"hc_{name}_layer.hc_pre.hc_{part}")
    for stored, name in (("attn", "attn"), ("ffn", "mlp"))
    for part in _PARTS
)
_HEAD: tuple[Rule, ...] = tuple(top(f"output_hc_{part}.weight", f"model.hc_head.hc_head_{part}") for part in _PARTS)
_EXPERTS: tuple[Rule, ...] = (
    *weights((("ffn_gate_inp", "mlp.gate"),)),
    block("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    Rule(
        ("blk.{bid}.ffn_gate_exps.weight", "blk.{bid}.ffn_up_exps.weight"),
        ("model.layers.{bid}.mlp.experts.gate_up_proj",),
        "join_rows",
    ),
    block("ffn_down_exps.weight", "mlp.experts.down_proj"),
    *SHARED_EXPERTS,
)

HY_V4 = Architecture(
    names=("hy_v4",),
    model_type="hy_v4",
    model_class="HYV4ForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + _HEAD
    + PRE_NORMS
    + MLA
    + weights((("attn_gate", "self_attn.linear_gate"),))
    + (block("attn_sinks.weight", "self_attn.learnable_sink_param"),)
    + _HYPER
    + only(INDEXER, "full_indexer", "has:attention.indexer.head_count")
    + only(GATED_MLP, "dense")
    + only(_EXPERTS, "moe"),
    config=(
        *BASE_CONFIG,
        *MLA_CONFIG,
        header("num_key_value_heads", "attention.head_count"),
        derived("head_dim", "qk_rope_head_dim"),
        derived("rope_parameters", "mla_rope_parameters"),
        derived("mlp_layer_types"),
        header("first_k_dense_replace", "leading_dense_block_count", fallback=0),
        header("n_routed_experts", "expert_count"),
        header("n_shared_experts", "expert_shared_count", fallback=1),
        header("num_experts_per_tok", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("norm_topk_prob"),
        derived("indexer_types"),
        derived("layer_types", "hy_layer_types"),
        header("index_n_heads", "attention.indexer.head_count", optional=True),
        header("index_head_dim", "attention.indexer.key_length", optional=True),
        header("index_topk", "attention.indexer.top_k", optional=True),
        header("hc_mult", "hyper_connection.count"),
        header("hc_eps", "hyper_connection.epsilon"),
        header("hc_magnitude", "hyper_connection.magnitude"),
        derived("gating_type", "hy_gating_type"),
        derived("swiglu_limit"),
        derived("num_nextn_predict_layers"),
        *assumed(enable_ihc=True, gated_mla=True, learnable_sink=True, enable_lm_head_fp32=True, n_group=1),
        *assumed(hidden_act="silu", attention_bias=False, topk_group=1),
    ),
    skips=ROPE_FREQS,
)
