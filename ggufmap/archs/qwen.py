"""Qwen2 (also 2.5, QwQ, DeepSeek-R1 distillations) and Qwen3, dense and with experts.

Source: llama.cpp 0c1e57098 conversion/qwen.py; vLLM 0.32.0 model_executor/models/qwen2.py, qwen3.py, qwen2_moe.py,
qwen3_moe.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, assumed, block, derived, header, weights
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

SHARED_EXPERT: tuple[Rule, ...] = (
    *weights(tuple((f"ffn_{part}_shexp", f"mlp.shared_expert.{part}_proj") for part in ("gate", "up", "down"))),
    block("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", "as_row"),
)
"""One shared expert with a gate of its own."""

EXPERTS_CONFIG: tuple[ConfigRow, ...] = (
    header("num_experts", "expert_count"),
    header("num_experts_per_tok", "expert_used_count"),
    derived("moe_intermediate_size", "expert_size"),
    # llama.cpp has experts in every block (src/models/qwen2moe.cpp, qwen3moe.cpp).
    *assumed(decoder_sparse_step=1, mlp_only_layers=[]),
)

QWEN2_MOE = Architecture(
    names=("qwen2moe",),
    model_type="qwen2_moe",
    model_class="Qwen2MoeForCausalLM",
    rules=EMBEDDING + ATTENTION + ATTENTION_BIAS + EXPERTS + SHARED_EXPERT + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        *EXPERTS_CONFIG,
        derived("rope_parameters"),
        derived("shared_expert_intermediate_size", "shared_expert_size"),
        derived("qkv_bias"),
        # llama.cpp does not renormalise the chosen experts' weights (build_moe_ffn's norm_w).
        *assumed(hidden_act="silu", norm_topk_prob=False, use_sliding_window=False, sliding_window=None),
        derived("max_window_layers", "num_hidden_layers", guess=True),
        derived("layer_types", "full_layer_types"),
    ),
    skips=ROPE_FREQS,
)

QWEN3_MOE = Architecture(
    names=("qwen3moe",),
    model_type="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    rules=EMBEDDING + ATTENTION + ATTENTION_BIAS + QK_NORM + EXPERTS + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        *EXPERTS_CONFIG,
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        # llama.cpp renormalises them here.
        *assumed(hidden_act="silu", norm_topk_prob=True, use_sliding_window=False, sliding_window=None),
    ),
    skips=ROPE_FREQS,
)
