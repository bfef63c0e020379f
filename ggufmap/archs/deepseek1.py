"""DeepSeek MoE 16B (`deepseek`): the first of the line, with a Llama's attention and softmax routing.

Source: llama.cpp 0c1e57098 conversion/deepseek.py (DeepseekModel), src/models/deepseek.cpp; vLLM 0.32.0
model_executor/models/deepseek_v2.py (DeepseekForCausalLM).
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, derived, only, without
from ggufmap.archs.blocks import (
    COMMON_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    MOE_CONFIG,
    PRE_NORMS,
    ROPE_FREQS,
    ROPE_PERMUTED_ATTENTION,
    SHARED_EXPERTS,
)

DEEPSEEK = Architecture(
    names=("deepseek",),
    # transformers has no config class for `deepseek`; vLLM takes the class from `architectures`, the keys from any.
    model_type="llama",
    model_class="DeepseekForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + PRE_NORMS
    + ROPE_PERMUTED_ATTENTION
    + only(GATED_MLP, "dense")
    + only(EXPERTS, "moe")
    + only(SHARED_EXPERTS, "moe", "has:expert_shared_count"),
    config=(
        *COMMON_CONFIG,
        *without(MOE_CONFIG, "routed_scaling_factor"),
        derived("rope_parameters"),
        # llama.cpp src/models/deepseek.cpp: no scale, no renormalisation.
        *assumed(hidden_act="silu", moe_layer_freq=1, attention_bias=False, rope_scaling=None),
    ),
    skips=ROPE_FREQS,
)
