"""AFMoE (Arcee Trinity): gated attention, sliding layers with RoPE and full ones without, biased sigmoid routing.

Source: llama.cpp 0c1e57098 conversion/afmoe.py, src/models/afmoe.cpp; vLLM 0.32.0 model_executor/models/afmoe.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, block, derived, header, only, renamed, weights
from ggufmap.archs.blocks import (
    ATTENTION,
    COMMON_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    QK_NORM,
    SHARED_EXPERTS,
)

_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_mlp_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
)

AFMOE = Architecture(
    names=("afmoe",),
    model_type="afmoe",
    model_class="AfmoeForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + QK_NORM
    + weights((*_NORMS, ("attn_gate", "self_attn.gate_proj")))
    + only(GATED_MLP, "dense")
    + only(renamed(EXPERTS, ".mlp.gate.", ".mlp.router.gate."), "moe")
    + only(SHARED_EXPERTS, "moe", "has:expert_shared_count")
    + only((block("exp_probs_b.bias", "mlp.expert_bias"),), "moe"),
    config=(
        *COMMON_CONFIG,
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("num_shared_experts", "expert_shared_count", fallback=0),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("num_dense_layers", "leading_dense_block_count", fallback=0),
        header("route_scale", "expert_weights_scale", fallback=1.0),
        header("sliding_window", "attention.sliding_window"),
        derived("route_norm", "norm_topk_prob"),
        derived("score_func", "scoring_func"),
        derived("n_group"),
        derived("topk_group"),
        derived("layer_types", "sliding_layer_types_4"),
        derived("rope_parameters"),
        # llama.cpp src/models/afmoe.cpp always scales the embedding by the root of its size.
        *assumed(hidden_act="silu", mup_enabled=True, attention_bias=False, global_attn_every_n_layers=4),
    ),
)
