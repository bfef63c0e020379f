"""MiniMax M2.

Source: llama.cpp 0c1e57098 conversion/minimax.py, src/models/minimax-m2.cpp; vLLM 0.32.0
model_executor/models/minimax_m2.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, block, derived, header, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, PRE_NORMS, QK_NORM, stacked_experts

_EXPERTS = weights((("ffn_gate_inp", "block_sparse_moe.gate"),)) + stacked_experts(
    *(f"block_sparse_moe.experts.{{eid}}.{name}" for name in ("w1", "w3", "w2"))
)
_ROUTER_BIAS = (block("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),)

MINIMAX_M2 = Architecture(
    names=("minimax-m2",),
    model_type="minimax_m2",
    model_class="MiniMaxM2ForCausalLM",
    rules=EMBEDDING + ATTENTION + QK_NORM + PRE_NORMS + FINAL_NORM + _EXPERTS + _ROUTER_BIAS,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        derived("partial_rotary_factor"),
        header("rotary_dim", "rope.dimension_count"),
        header("num_local_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        derived("scoring_func"),
        derived("use_routing_bias", "router_bias"),
        *assumed(hidden_act="silu", use_qk_norm=True, qk_norm_type="per_layer"),
    ),
)
