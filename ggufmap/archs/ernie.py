"""Ernie 4.5, dense and with experts.

Source: llama.cpp 0c1e57098 conversion/ernie.py, src/models/ernie4-5.cpp, ernie4-5-moe.cpp; vLLM 0.32.0
model_executor/models/ernie45.py, ernie45_moe.py. The converter leaves the MTP blocks out.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, assumed, block, derived, header, only
from ggufmap.archs.blocks import (
    ATTENTION,
    ATTENTION_BIAS,
    COMMON_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    SHARED_EXPERTS,
)

_DECODER = EMBEDDING + ATTENTION + ATTENTION_BIAS + PRE_NORMS + FINAL_NORM
_CONFIG: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    derived("rope_parameters"),
    derived("use_bias", "qkv_bias"),
    *assumed(hidden_act="silu"),
)

ERNIE4_5 = Architecture(
    names=("ernie4_5",),
    model_type="ernie4_5",
    model_class="Ernie4_5ForCausalLM",
    rules=_DECODER + GATED_MLP,
    config=_CONFIG,
)

ERNIE4_5_MOE = Architecture(
    names=("ernie4_5-moe",),
    model_type="ernie4_5_moe",
    model_class="Ernie4_5_MoeForCausalLM",
    rules=_DECODER
    + only(GATED_MLP, "dense")
    + only(EXPERTS, "moe")
    + only(SHARED_EXPERTS, "moe", "has:expert_shared_feed_forward_length")
    + only((block("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias", "as_row"),), "moe"),
    config=(
        *_CONFIG,
        header("moe_num_experts", "expert_count"),
        header("moe_k", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("moe_num_shared_experts", "expert_shared_count", fallback=0),
        header("moe_layer_interval", "interleave_moe_layer_step", fallback=1),
        header("moe_layer_start_index", "leading_dense_block_count", fallback=0),
        derived("moe_layer_end_index", "last_block", guess=True),
        *assumed(use_moe=True, moe_norm_min=1e-12),
    ),
)
