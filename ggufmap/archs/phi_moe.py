"""Phi-3.5-MoE.

Source: llama.cpp 0c1e57098 conversion/phi.py (PhiMoeModel), src/models/phimoe.cpp; vLLM 0.32.0
model_executor/models/phimoe.py. Its norms are layer norms, whose epsilon the header keeps under the RMS key.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, biases, derived, header, top, weights
from ggufmap.archs.blocks import (
    ATTENTION,
    ATTENTION_BIAS,
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    PRE_NORMS,
    stacked_experts,
)
from ggufmap.archs.phi import ROPE_FACTORS

_EXPERTS = weights((("ffn_gate_inp", "block_sparse_moe.gate"),)) + stacked_experts(
    *(f"block_sparse_moe.experts.{{eid}}.{name}" for name in ("w1", "w3", "w2"))
)

PHI_MOE = Architecture(
    names=("phimoe",),
    model_type="phimoe",
    model_class="PhiMoEForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + PRE_NORMS
    + biases((("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")))
    + ATTENTION
    + ATTENTION_BIAS
    + _EXPERTS
    + (
        top("output_norm.bias", "model.norm.bias"),
        top("output.bias", "lm_head.bias", optional="this model's head has no bias"),
    ),
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters", "phimoe_rope_parameters", guess=True),
        derived("original_max_position_embeddings"),
        derived("attention_bias", "qkv_bias"),
        derived("lm_head_bias"),
        header("num_local_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        *assumed(hidden_act="silu", sliding_window=None, hidden_dropout=0.0, input_jitter_noise=0.0),
    ),
    skips=ROPE_FACTORS,
)
