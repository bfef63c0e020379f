"""Bailing MoE V3 (Ling 3.0): Kimi delta attention with a gated MLA block now and then, biased experts, an MTP block.

Neither transformers 5.19 nor vLLM has a config class for the text model (`bailing_hybrid`, code of the repository).
Kimi Linear's keeps any further key and is known to vLLM for latent attention; the class is chosen by `architectures`.

Source: llama.cpp 0c1e57098 conversion/bailingmoe3.py, src/models/bailingmoe3.cpp; vLLM 0.32.0
model_executor/models/bailing_moe_v3.py, bailing_moe_v3_mtp.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, renamed, top, weights
from ggufmap.archs.blocks import (
    BASE_CONFIG,
    DRAFT_CONFIG,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    MLA,
    MLA_CONFIG,
    PRE_NORMS,
    SHARED_EXPERTS,
)

_MLA = renamed(renamed(MLA, ".self_attn.o_proj.", ".self_attn.dense."), ".self_attn.", ".attention.")
_KDA: tuple[Rule, ...] = (
    *weights(
        (
            *((f"attn_{x}", f"attention.{x}_proj") for x in "qkv"),
            ("ssm_f_a", "attention.f_proj"),
            ("ssm_g_a", "attention.g_proj"),
            ("ssm_beta", "attention.b_proj"),
            ("ssm_norm", "attention.o_norm"),
            ("attn_output", "attention.o_proj"),
        )
    ),
    *weights(tuple((f"ssm_conv1d_{x}", f"attention.{x}_conv1d") for x in "qkv"), "conv_channels"),
    block("ssm_a", "attention.A_log", "log_flat"),
    block("ssm_dt.bias", "attention.dt_bias"),
)
_NEXTN = weights(
    (
        ("nextn.eh_proj", "eh_proj"),
        ("nextn.enorm", "enorm"),
        ("nextn.hnorm", "hnorm"),
        ("layer_output_norm", "final_layernorm"),
    )
)

BAILING_MOE3 = Architecture(
    names=("bailingmoe3",),
    model_type="kimi_linear",
    model_class="BailingMoeV3ForCausalLM",
    rules=(
        top("token_embd.weight", "model.word_embeddings.weight"),
        top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
        *FINAL_NORM,
        *PRE_NORMS,
        *only(_MLA, "softmax_attention"),
        *only(weights((("attn_gate", "attention.g_proj"),)), "softmax_attention"),
        *only(_KDA, "linear_attention"),
        *only(GATED_MLP, "dense"),
        *only(EXPERTS + SHARED_EXPERTS, "moe"),
        *only((block("exp_probs_b.bias", "mlp.gate.expert_bias"),), "moe"),
        *only(_NEXTN, "draft"),
    ),
    config=(
        *BASE_CONFIG,
        *DRAFT_CONFIG,
        *MLA_CONFIG,
        header("num_key_value_heads", "attention.head_count"),
        header("head_dim", "kda.head_dim"),
        header("short_conv_kernel_size", "ssm.conv_kernel"),
        header("kda_lower_bound", "kda.gate_lower_bound"),
        derived("layer_group_size"),
        derived("layer_types", "full_or_linear_layer_types"),
        derived("rope_parameters", "mla_rope_parameters"),
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("num_shared_experts", "expert_shared_count", fallback=1),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        derived("moe_shared_expert_intermediate_size", "single_shared_expert_size"),
        header("first_k_dense_replace", "leading_dense_block_count", fallback=0),
        header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("n_group"),
        derived("topk_group"),
        derived("norm_topk_prob"),
        derived("score_function", "scoring_func"),
        derived("expert_swiglu_limit_list", "swiglu_limits"),
        derived("share_expert_swiglu_limit_list", "swiglu_limits_shared"),
        # The converter refuses any other kind of gate and of delta attention.
        *assumed(kda_safe_gate=True, no_kda_lora=True, gated_attention_proj_granularity_type="head_wise"),
        *assumed(hidden_act="silu", use_bias=False, use_qkv_bias=False, moe_router_enable_expert_bias=True),
    ),
)
