"""OLMo, OLMo 2, OLMo 3 and OLMoE.

Source: llama.cpp 0c1e57098 conversion/olmo.py, src/models/olmo.cpp, olmo2.cpp, olmoe.cpp; vLLM 0.32.0
model_executor/models/olmoe.py, and its Transformers class for the dense ones.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Variant, assumed, derived, header, weights, without
from ggufmap.archs.blocks import (
    ATTENTION,
    ATTENTION_BIAS,
    COMMON_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    QK_NORM,
    ROPE_PERMUTED_ATTENTION,
)

_POST_NORMS = weights(
    (("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm"))
)

OLMO = Architecture(
    names=("olmo",),
    model_type="olmo",
    model_class="OlmoForCausalLM",
    rules=EMBEDDING + ROPE_PERMUTED_ATTENTION + GATED_MLP,
    config=(
        # Norms without weights, of a fixed epsilon.
        *without(COMMON_CONFIG, "rms_norm_eps", "head_dim"),
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        header("clip_qkv", "attention.clamp_kqv", nullable=True),
        *assumed(hidden_act="silu"),
    ),
)

_OLMO2_CONFIG = (*COMMON_CONFIG, derived("attention_bias", "qkv_bias"), *assumed(hidden_act="silu"))

OLMO2 = Architecture(
    names=("olmo2",),
    model_type="olmo2",
    model_class="Olmo2ForCausalLM",
    variants=(
        Variant(
            "sliding_window",
            "olmo3",
            "Olmo3ForCausalLM",
            config=(
                *_OLMO2_CONFIG,
                header("sliding_window", "attention.sliding_window"),
                derived("layer_types", "sliding_3_of_4"),
                derived("rope_parameters", "rope_parameters_one_base"),
            ),
        ),
    ),
    rules=EMBEDDING + ATTENTION + ATTENTION_BIAS + QK_NORM + GATED_MLP + _POST_NORMS + FINAL_NORM,
    config=(*_OLMO2_CONFIG, derived("rope_parameters")),
)
"""OLMo 3 is written under the same string; its sliding window tells."""

OLMOE = Architecture(
    names=("olmoe",),
    model_type="olmoe",
    model_class="OlmoeForCausalLM",
    rules=EMBEDDING + ATTENTION + ATTENTION_BIAS + QK_NORM + EXPERTS + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        # llama.cpp does not renormalise the chosen experts' weights; the converter would drop a clip_qkv.
        *assumed(hidden_act="silu", norm_topk_prob=False, clip_qkv=None),
    ),
)
