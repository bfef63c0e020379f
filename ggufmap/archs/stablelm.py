"""StableLM: Llama's tree with LayerNorm and partial RoPE.

The 12B model (parallel residual, norms per head) has no rows: vLLM's class has neither, and the converter of llama.cpp
0c1e57098 cannot write its norms.

Source: llama.cpp 0c1e57098 conversion/stablelm.py, src/models/stablelm.cpp; vLLM 0.32.0
model_executor/models/stablelm.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, biases, block, derived, header, top, without
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, GATED_MLP, PRE_NORMS, ROPE_FREQS

STABLELM = Architecture(
    names=("stablelm",),
    model_type="stablelm",
    model_class="StableLmForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + (top("output_norm.bias", "model.norm.bias"),)
    + PRE_NORMS
    + (
        block("attn_norm.bias", "input_layernorm.bias"),
        block("ffn_norm.bias", "post_attention_layernorm.bias"),
    )
    + ATTENTION
    + biases((("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj")))
    + GATED_MLP,
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps", "head_dim"),
        header("layer_norm_eps", "attention.layer_norm_epsilon"),
        derived("rope_parameters"),
        derived("use_qkv_bias", "qkv_bias"),
        derived("use_parallel_residual", "parallel_residual"),
        derived("qk_layernorm", "qk_norm"),
        *assumed(hidden_act="silu", hidden_dropout=0.0),
    ),
    skips=ROPE_FREQS,
)
