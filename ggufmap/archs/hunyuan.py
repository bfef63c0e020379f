"""Hunyuan V1, dense.

Source: llama.cpp 0c1e57098 conversion/hunyuan.py, src/models/hunyuan-dense.cpp; vLLM 0.32.0's
Transformers class. The converter bakes the alpha of the dynamic RoPE into its base, which computes the same.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, assumed, derived, weights
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

_DECODER = (
    EMBEDDING
    + ATTENTION
    + ATTENTION_BIAS
    + weights((("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")))
    + PRE_NORMS
    + FINAL_NORM
)
_CONFIG: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    derived("rope_parameters"),
    derived("attention_bias", "qkv_bias"),
    derived("eod_token_id", "eos_token_id"),
    *assumed(hidden_act="silu", pretraining_tp=1),
)

HUNYUAN_DENSE = Architecture(
    names=("hunyuan-dense",),
    model_type="hunyuan_v1_dense",
    model_class="HunYuanDenseV1ForCausalLM",
    rules=_DECODER + GATED_MLP,
    config=_CONFIG,
    skips=ROPE_FREQS,
)
