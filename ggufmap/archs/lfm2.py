"""LFM2, dense and mixture of experts: gated short convolutions with an attention block now and then.

Source: llama.cpp 0c1e57098 conversion/lfm2.py, src/models/lfm2.cpp, lfm2moe.cpp; vLLM 0.32.0
model_executor/models/lfm2.py, lfm2_moe.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, assumed, block, derived, header, only, top, weights
from ggufmap.archs.blocks import BASE_CONFIG, EMBEDDING, ROPE_FREQS

_ATTENTION = weights(
    (
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.out_proj"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
    )
)
_CONV: tuple[Rule, ...] = (
    block("shortconv.conv.weight", "conv.conv.weight", "conv_channels"),
    *weights((("shortconv.in_proj", "conv.in_proj"), ("shortconv.out_proj", "conv.out_proj"))),
)
_PARTS = (("gate", "w1"), ("up", "w3"), ("down", "w2"))
_DENSE = weights(tuple((f"ffn_{part}", f"feed_forward.{name}") for part, name in _PARTS))
_EXPERTS: tuple[Rule, ...] = (
    block("ffn_gate_inp.weight", "feed_forward.gate.weight"),
    block("exp_probs_b.bias", "feed_forward.expert_bias", optional="this model's router has no bias"),
    *(
        block(f"ffn_{part}_exps.weight", f"feed_forward.experts.{{eid}}.{name}.weight", "experts")
        for part, name in _PARTS
    ),
)
_BODY: tuple[Rule, ...] = (
    *EMBEDDING,
    top("token_embd_norm.weight", "model.embedding_norm.weight"),  # its name in the file; it is the last norm
    *weights((("attn_norm", "operator_norm"), ("ffn_norm", "ffn_norm"))),
    *only(_CONV, "linear_attention"),
    *only(_ATTENTION, "softmax_attention"),
)

# The header has the size that comes out of the adjustment, so there is nothing left to adjust.
_CONFIG: tuple[ConfigRow, ...] = (
    *(row for row in BASE_CONFIG if row.key != "rms_norm_eps"),
    header("norm_eps", "attention.layer_norm_rms_epsilon"),
    derived("num_key_value_heads", "hybrid_kv_heads"),
    derived("layer_types", "conv_layer_types"),
    derived("rope_parameters"),
    header("conv_L_cache", "shortconv.l_cache"),
    *assumed(conv_bias=False),
)

LFM2 = Architecture(
    names=("lfm2",),
    model_type="lfm2",
    model_class="Lfm2ForCausalLM",
    rules=_BODY + _DENSE,
    config=(
        *_CONFIG,
        header("conv_dim", "embedding_length"),
        header("block_dim", "embedding_length"),
        *assumed(block_auto_adjust_ff_dim=False, block_ffn_dim_multiplier=1.0, block_multiple_of=256),
    ),
    skips=ROPE_FREQS,
)

LFM2_MOE = Architecture(
    names=("lfm2moe",),
    model_type="lfm2_moe",
    model_class="Lfm2MoeForCausalLM",
    rules=_BODY + only(_DENSE, "dense") + only(_EXPERTS, "moe"),
    config=(
        *_CONFIG,
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("num_dense_layers", "leading_dense_block_count", fallback=0),
        derived("use_expert_bias", "router_bias"),
        # llama.cpp normalises and does not scale, whatever the original said (src/models/lfm2moe.cpp).
        *assumed(norm_topk_prob=True, routed_scaling_factor=1.0),
    ),
    skips=ROPE_FREQS,
)
