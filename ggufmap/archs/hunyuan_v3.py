"""Hunyuan V3 (Hy3): experts with a biased sigmoid router behind a dense block, and an MTP block.

Source: llama.cpp 0c1e57098 conversion/hunyuan.py (HYV3Model), src/models/hy-v3.cpp; vLLM 0.32.0
model_executor/models/hy_v3.py, hy_v3_mtp.py. vLLM's class reads keys that transformers' config class does not have.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, renamed, weights
from ggufmap.archs.blocks import (
    ATTENTION,
    COMMON_CONFIG,
    DRAFT_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    QK_NORM,
    SHARED_EXPERTS,
    stacked_experts,
)

_EXPERTS: tuple[Rule, ...] = (
    *weights((("ffn_gate_inp", "mlp.router.gate"),)),
    block("exp_probs_b", "mlp.expert_bias"),
    *stacked_experts(*(f"mlp.experts.{{eid}}.{part}_proj" for part in ("gate", "up", "down"))),
    *renamed(SHARED_EXPERTS, ".shared_experts.", ".shared_mlp."),
)
_NEXTN: tuple[Rule, ...] = (
    *weights(
        (
            ("nextn.eh_proj", "eh_proj"),
            ("nextn.enorm", "enorm"),
            ("nextn.hnorm", "hnorm"),
            ("nextn.shared_head_norm", "final_layernorm"),
        )
    ),
)

HY_V3 = Architecture(
    names=("hy_v3",),
    model_type="hy_v3",
    model_class="HYV3ForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + QK_NORM
    + PRE_NORMS
    + only(GATED_MLP, "unrouted")
    + only(_EXPERTS, "routed")
    + only(_NEXTN, "draft"),
    config=(
        *COMMON_CONFIG,
        *DRAFT_CONFIG,
        derived("rope_parameters"),
        derived("qk_norm"),
        derived("first_k_dense_replace", "first_routed_layer"),
        derived("mlp_layer_types", "mlp_types_by_router"),
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        derived("num_shared_experts", "shared_expert_multiple"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("expert_hidden_dim", "expert_feed_forward_length"),
        header("router_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("route_norm", "norm_topk_prob"),
        *assumed(hidden_act="silu", attention_bias=False, mlp_bias=False, enable_moe_fp32_combine=True),
    ),
)
