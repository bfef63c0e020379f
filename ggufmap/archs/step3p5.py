"""Step 3.5 Flash (`step35`): full and sliding blocks with their own heads, gated heads, dense MTP blocks.

Source: llama.cpp 0c1e57098 conversion/step3.py (Step35Model: norms are stored plus one), src/models/step35.cpp;
vLLM 0.32.0 model_executor/models/step3p5.py, step3p5_mtp.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, renamed, top, weights, without
from ggufmap.archs.blocks import ATTENTION, BASE_CONFIG, DRAFT_CONFIG, EMBEDDING, GATED_MLP, ROPE_FREQS, SHARED_EXPERTS

_MINUS_ONE = "add:-1"
_OUTSIDE: tuple[Rule, ...] = (*EMBEDDING, top("output_norm.weight", "model.norm.weight", _MINUS_ONE))
_NORMS = weights(
    (
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
    ),
    _MINUS_ONE,
)
_EXPERTS: tuple[Rule, ...] = (
    *weights((("ffn_gate_inp", "moe.gate"),)),
    block("exp_probs_b.bias", "moe.router_bias"),
    *weights(tuple((f"ffn_{part}_exps", f"moe.{part}_proj") for part in ("gate", "up", "down"))),
    *renamed(SHARED_EXPERTS, "mlp.shared_experts", "share_expert"),
)
_NEXTN: tuple[Rule, ...] = (
    *weights((("nextn.eh_proj", "eh_proj"),)),
    *weights(
        (
            ("nextn.enorm", "enorm"),
            ("nextn.hnorm", "hnorm"),
            ("nextn.shared_head_norm", "transformer.shared_head.norm"),
        ),
        _MINUS_ONE,
    ),
    *weights((("nextn.shared_head_head", "transformer.shared_head.output"),), optional="shared with the target"),
    *weights((("nextn.embed_tokens", "embed_tokens"),), optional="shared with the target"),
)

STEP35 = Architecture(
    names=("step35",),
    model_type="step3p5",
    model_class="Step3p5ForCausalLM",
    rules=_OUTSIDE
    + ATTENTION
    + _NORMS
    + weights((("attn_gate", "self_attn.g_proj"),), optional="this model has no head-wise gate")
    + only(GATED_MLP, "unrouted")
    + only(_EXPERTS, "routed")
    + only(_NEXTN, "draft"),
    config=(
        *without(BASE_CONFIG, "num_attention_heads"),
        *DRAFT_CONFIG,
        derived("num_attention_heads", "full_head_count"),
        derived("num_attention_groups", "full_head_count_kv"),
        derived("attention_other_setting"),
        header("head_dim", "attention.key_length"),
        header("max_seq_len", "context_length"),
        header("sliding_window", "attention.sliding_window"),
        derived("layer_types", "step_layer_types"),
        derived("rope_theta", "step_thetas"),
        derived("partial_rotary_factors", "step_partial_rotary"),
        derived("rope_scaling", "step_rope_scaling"),
        derived("use_head_wise_attn_gate", "head_wise_gate"),
        derived("moe_layers_enum"),
        header("moe_num_experts", "expert_count"),
        header("moe_top_k", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("share_expert_dim", "expert_shared_feed_forward_length"),
        header("moe_every_n_layer", "moe_every_n_layers", fallback=1),
        header("moe_router_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("norm_expert_weight", "norm_topk_prob"),
        derived("moe_router_activation", "scoring_func"),
        derived("swiglu_limits"),
        derived("swiglu_limits_shared"),
        # vLLM's class asserts the two flags; llama.cpp scales the full blocks' RoPE only.
        *assumed(
            hidden_act="silu",
            att_impl_type="GQA",
            use_moe=True,
            moe_layer_offset=0,
            use_moe_router_bias=True,
            need_fp32_gate=True,
            use_rope_layers=[],
            yarn_only_types=["full_attention"],
        ),
    ),
    skips=ROPE_FREQS,
)
