"""MiMo V2 Flash and V2.5 (`mimo2`): full and sliding blocks of their own key-value heads, sinks, dense MTP blocks.

Source: llama.cpp 0c1e57098 conversion/mimo.py, src/models/mimo2.cpp; vLLM 0.32.0 model_executor/models/mimo_v2.py,
mimo_v2_mtp.py (which runs the first MTP block only).
"""

from __future__ import annotations

from ggufmap.archs.base import (
    Architecture,
    Rule,
    Skip,
    Variant,
    assumed,
    block,
    derived,
    header,
    only,
    renamed,
    weights,
    without,
)
from ggufmap.archs.blocks import (
    ATTENTION,
    BASE_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    ROUTER_BIAS,
)

_ATTENTION: tuple[Rule, ...] = (
    *only(ATTENTION[:-1], "split_qkv"),
    *only(weights((("attn_qkv", "self_attn.qkv_proj"),)), "fused_qkv"),
    *ATTENTION[-1:],
)
"""V2.5 has query, key and value in one."""

_SINKS = block("attn_sinks.weight", "self_attn.attention_sink_bias", optional="only sliding blocks have sinks")
_MTP: tuple[Rule, ...] = (
    *renamed(PRE_NORMS, "post_attention_layernorm", "pre_mlp_layernorm"),
    *_ATTENTION,
    _SINKS,
    *GATED_MLP,
    *weights(
        (
            ("nextn.eh_proj", "eh_proj"),
            ("nextn.enorm", "enorm"),
            ("nextn.hnorm", "hnorm"),
            ("layer_output_norm", "final_layernorm"),
        )
    ),
)
_LATER_BLOCKS = Skip("blk.{bid}.*", "vLLM runs the first MTP block of this family only", blocks=("later_draft",))

MIMO2 = Architecture(
    names=("mimo2",),
    model_type="mimo_v2_flash",
    model_class="MiMoV2FlashForCausalLM",
    variants=(Variant("fused_qkv", "mimo_v2_flash", "MiMoV2ForCausalLM"),),
    rules=EMBEDDING
    + FINAL_NORM
    + only((*PRE_NORMS, *_ATTENTION, _SINKS), "trunk")
    + only(GATED_MLP, "trunk", "unrouted")
    + only(EXPERTS + ROUTER_BIAS, "trunk", "routed")
    + only(renamed(_MTP, "model.layers.{bid}.", "model.mtp.layers.{nextn}."), "first_draft"),
    config=(
        *without(BASE_CONFIG, "rms_norm_eps"),
        header("layernorm_epsilon", "attention.layer_norm_rms_epsilon"),
        derived("num_key_value_heads", "full_head_count_kv"),
        derived("swa_num_key_value_heads", "sliding_head_count_kv"),
        header("swa_num_attention_heads", "attention.head_count"),
        header("head_dim", "attention.key_length"),
        header("swa_head_dim", "attention.key_length"),
        header("v_head_dim", "attention.value_length"),
        header("swa_v_head_dim", "attention.value_length"),
        header("attention_value_scale", "attention.value_scale", nullable=True),
        header("sliding_window", "attention.sliding_window"),
        header("sliding_window_size", "attention.sliding_window"),
        header("rope_theta", "rope.freq_base"),
        header("swa_rope_theta", "rope.freq_base_swa"),
        derived("partial_rotary_factor", "rotated_part"),
        derived("hybrid_layer_pattern"),
        derived("moe_layer_freq"),
        derived("add_swa_attention_sink_bias", "sliding_sinks"),
        derived("add_full_attention_sink_bias", "full_sinks"),
        header("n_routed_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        derived("scoring_func"),
        derived("topk_method"),
        derived("n_group"),
        derived("topk_group"),
        # llama.cpp src/models/mimo2.cpp renormalises the chosen experts' weights and scales nothing.
        *assumed(hidden_act="silu", attention_bias=False, norm_topk_prob=True, routed_scaling_factor=None),
    ),
    skips=(_LATER_BLOCKS,),
)
