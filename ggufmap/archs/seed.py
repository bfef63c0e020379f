"""Seed-OSS.

Source: llama.cpp 0c1e57098 conversion/olmo.py (SeedOssModel), src/models/seed-oss.cpp; vLLM 0.32.0's
Transformers class.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, derived, weights
from ggufmap.archs.blocks import (
    ATTENTION,
    ATTENTION_BIAS,
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    GATED_MLP_BIAS,
)

SEED_OSS = Architecture(
    names=("seed_oss",),
    model_type="seed_oss",
    model_class="SeedOssForCausalLM",
    rules=EMBEDDING
    + ATTENTION
    + ATTENTION_BIAS
    + GATED_MLP
    + GATED_MLP_BIAS
    + weights((("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")))
    + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        derived("attention_out_bias", "output_bias"),
        derived("mlp_bias"),
        *assumed(hidden_act="silu", residual_dropout=0.0),
    ),
)
