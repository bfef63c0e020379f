"""Gemma, Gemma 2 and Gemma 3; with a projector file, Gemma 3 with its vision tower.

Source: llama.cpp 0c1e57098 conversion/gemma.py (every `norm.weight` is stored plus one, the embedding is always tied)
and src/models/gemma.cpp, gemma2.cpp, gemma3.cpp; vLLM 0.32.0 model_executor/models/gemma.py, gemma2.py, gemma3.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Variant, assumed, derived, header, top, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, GATED_MLP, ROPE_FREQS
from ggufmap.archs.vision import GEMMA3_TOWER, GEMMA3_VISION, in_language_model

SANDWICH_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
)
_NORMS = (
    *SANDWICH_NORMS,
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
)
_FINAL_NORM = (top("output_norm.weight", "model.norm.weight", "add:-1"),)
_ACTIVATION = "gelu_pytorch_tanh"

# Neither header has the RoPE base: 10000 in every model.
GEMMA = Architecture(
    names=("gemma",),
    model_type="gemma",
    model_class="GemmaForCausalLM",
    rules=EMBEDDING
    + ATTENTION
    + GATED_MLP
    + weights((("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")), "add:-1")
    + _FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        *assumed(hidden_act=_ACTIVATION, hidden_activation=_ACTIVATION, attention_bias=False),
    ),
    skips=ROPE_FREQS,
    bf16_only="Gemma activations exceed fp16's range (65504)",
)

GEMMA2 = Architecture(
    names=("gemma2",),
    model_type="gemma2",
    model_class="Gemma2ForCausalLM",
    rules=EMBEDDING + ATTENTION + GATED_MLP + weights(SANDWICH_NORMS, "add:-1") + _FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        header("sliding_window", "attention.sliding_window", fallback=4096),
        derived("layer_types", "sliding_layer_types_2"),
        derived("rope_parameters"),
        derived("query_pre_attn_scalar", "gemma2_query_scalar", guess=True),
        header("attn_logit_softcapping", "attn_logit_softcapping", fallback=50.0),
        header("final_logit_softcapping", "final_logit_softcapping", fallback=30.0),
        *assumed(hidden_act=_ACTIVATION, hidden_activation=_ACTIVATION, attention_bias=False),
    ),
    skips=ROPE_FREQS,
    bf16_only="Gemma 2 activations exceed fp16's range (65504)",
)

_GEMMA3_RULES = EMBEDDING + ATTENTION + GATED_MLP + weights(_NORMS, "add:-1") + _FINAL_NORM

GEMMA3 = Architecture(
    names=("gemma3", "gemma3_text"),
    model_type="gemma3_text",
    model_class="Gemma3ForCausalLM",
    rules=_GEMMA3_RULES,
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
    variants=(
        Variant(
            "projector:gemma3",
            "gemma3",
            "Gemma3ForConditionalGeneration",
            rules=in_language_model(_GEMMA3_RULES) + GEMMA3_TOWER,
            vision=GEMMA3_VISION,
        ),
    ),
    bf16_only="Gemma 3 activations exceed fp16's range (65504)",
)
