"""openPangu Embedded: Llama's block with biases on all four projections of attention.

transformers 5.19 has no such class: its config is written as Llama's, with the keys that vLLM's class reads besides.

Source: llama.cpp 0c1e57098 conversion/pangu.py; vLLM 0.32.0 model_executor/models/openpangu.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, derived
from ggufmap.archs.blocks import (
    ATTENTION,
    ATTENTION_BIAS,
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    ROPE_FREQS,
)

PANGU_EMBEDDED = Architecture(
    names=("pangu-embedded",),
    model_type="llama",
    model_class="PanguEmbeddedForCausalLM",
    rules=EMBEDDING + FINAL_NORM + ATTENTION + ATTENTION_BIAS + GATED_MLP + PRE_NORMS,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("bias", "output_bias"),
        derived("qkv_bias"),
        *assumed(hidden_act="silu", mlp_bias=False),
    ),
    skips=ROPE_FREQS,
)
