"""DeepSeek V2, V3, R1, GLM-4.7-Flash (`deepseek2`) and V3.2 (`deepseek32`).

Source: llama.cpp 0c1e57098 conversion/deepseek.py; vLLM 0.32.0 model_executor/models/deepseek_v2.py, deepseek_mtp.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, Variant, assumed, block, derived, header, only
from ggufmap.archs.blocks import (
    BASE_CONFIG,
    DRAFT_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    INDEXER,
    MLA,
    MLA_CONFIG,
    MOE_CONFIG,
    NEXTN,
    PRE_NORMS,
    ROPE_FREQS,
    ROUTER_BIAS,
    SHARED_EXPERTS,
)

_SHARED = only(SHARED_EXPERTS, "moe", "has:expert_shared_count")

MLA_MOE: tuple[Rule, ...] = (
    EMBEDDING + FINAL_NORM + PRE_NORMS + MLA + only(GATED_MLP, "dense") + only(EXPERTS, "moe") + _SHARED + NEXTN
)
"""MLA with routed and shared experts; the router's bias is a row of its own."""

# vLLM reads `qk_head_dim`-like values from these; `num_key_value_heads` of an absorbed file (1) means nothing here.
MLA_MOE_CONFIG: tuple[ConfigRow, ...] = (
    *BASE_CONFIG,
    header("num_key_value_heads", "attention.head_count"),
    *MLA_CONFIG,
    *MOE_CONFIG,
    *DRAFT_CONFIG,
    derived("topk_method"),
    derived("rope_parameters", "mla_rope_parameters"),
    *assumed(hidden_act="silu", attention_bias=False, moe_layer_freq=1),
)

INDEXER_CONFIG: tuple[ConfigRow, ...] = (
    header("index_n_heads", "attention.indexer.head_count"),
    header("index_head_dim", "attention.indexer.key_length"),
    header("index_topk", "attention.indexer.top_k"),
)

DEEPSEEK2 = Architecture(
    names=("deepseek2",),
    model_type="deepseek_v3",
    model_class="DeepseekV3ForCausalLM",
    variants=(
        Variant("glm_tokenizer", "glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
        Variant("no_router_bias", "deepseek_v2", "DeepseekV2ForCausalLM"),
    ),
    rules=MLA_MOE + only(ROUTER_BIAS, "moe"),
    config=MLA_MOE_CONFIG,
    skips=ROPE_FREQS,
    bf16_only="DeepSeek activations exceed fp16's range (65504)",
)

DEEPSEEK32 = Architecture(
    names=("deepseek32",),
    model_type="deepseek_v32",
    model_class="DeepseekV32ForCausalLM",
    rules=MLA_MOE
    + only((block("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),), "moe")
    + only(INDEXER, "full_indexer"),
    config=(*MLA_MOE_CONFIG, *INDEXER_CONFIG),
    skips=ROPE_FREQS,
    bf16_only=DEEPSEEK2.bf16_only,
)
