"""Qwen2 (also 2.5, QwQ, DeepSeek-R1 distillations) and Qwen3, dense.

Source: llama.cpp 0c1e57098 conversion/qwen.py; vLLM 0.32.0 model_executor/models/qwen2.py, qwen3.py.
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
    QK_NORM,
    QKV_BIAS,
    ROPE_FREQS,
)

QWEN2 = Architecture(
    names=("qwen2",),
    model_type="qwen2",
    model_class="Qwen2ForCausalLM",
    rules=EMBEDDING + ATTENTION + QKV_BIAS + GATED_MLP + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        # llama.cpp runs every layer with full attention, whatever the original said.
        *assumed(hidden_act="silu", use_sliding_window=False, sliding_window=None),
        derived("max_window_layers", "num_hidden_layers", guess=True),
        derived("layer_types", "full_layer_types"),
    ),
    skips=ROPE_FREQS,
)

QWEN3 = Architecture(
    names=("qwen3",),
    model_type="qwen3",
    model_class="Qwen3ForCausalLM",
    rules=EMBEDDING + ATTENTION + ATTENTION_BIAS + QK_NORM + GATED_MLP + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        *assumed(hidden_act="silu", use_sliding_window=False, sliding_window=None),
        derived("max_window_layers", "num_hidden_layers", guess=True),
        derived("layer_types", "full_layer_types"),
    ),
    skips=ROPE_FREQS,
)
