"""Gemma 3, text part.

Source: llama.cpp 0c1e57098 conversion/gemma.py (every `norm.weight` is stored plus one, the embedding is always tied)
and src/models/gemma3.cpp; vLLM 0.32.0 model_executor/models/gemma3.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, derived, header, top, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, GATED_MLP, ROPE_FREQS

_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
)

GEMMA3 = Architecture(
    names=("gemma3", "gemma3_text"),
    model_type="gemma3_text",
    model_class="Gemma3ForCausalLM",
    rules=EMBEDDING
    + ATTENTION
    + GATED_MLP
    + weights(_NORMS, "add:-1")
    + (top("output_norm.weight", "model.norm.weight", "add:-1"),),
    config=(
        *COMMON_CONFIG,
        header("sliding_window", "attention.sliding_window", fallback=4096),
        derived("layer_types", "gemma3_layer_types"),
        derived("rope_parameters", "rope_parameters_by_layer_type"),
        derived("query_pre_attn_scalar", "gemma3_query_scalar", guess=True),
        derived("attention_bias", "qkv_bias"),
        header("final_logit_softcapping", "final_logit_softcapping", optional=True),
        *assumed(hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=None),
    ),
    skips=ROPE_FREQS,
    bf16_only="Gemma 3 activations exceed fp16's range (65504)",
)
