"""Llama and Mistral: one architecture string, `llama`, and one model class (the two compute the same).

Source: llama.cpp 0c1e57098 conversion/llama.py; vLLM 0.32.0 model_executor/models/llama.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, derived
from ggufmap.archs.blocks import (
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    GATED_MLP_BIAS,
    PRE_NORMS,
    ROPE_FREQS,
    ROPE_PERMUTED_ATTENTION,
)

LLAMA = Architecture(
    names=("llama",),
    model_type="llama",
    model_class="LlamaForCausalLM",
    rules=EMBEDDING + ROPE_PERMUTED_ATTENTION + GATED_MLP + GATED_MLP_BIAS + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("attention_bias", "output_bias"),
        derived("qkv_bias"),
        derived("mlp_bias"),
        *assumed(hidden_act="silu", pretraining_tp=1),
    ),
    skips=ROPE_FREQS,
)
