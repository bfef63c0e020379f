"""K-EXAONE (`exaone-moe`): sliding and full layers, biased sigmoid routing, dense MTP blocks.

Source: llama.cpp 0c1e57098 conversion/exaone.py (ExaoneMoEModel), src/models/exaone-moe.cpp; vLLM 0.32.0
model_executor/models/exaone_moe.py, exaone_moe_mtp.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, renamed, without
from ggufmap.archs.blocks import (
    ATTENTION,
    COMMON_CONFIG,
    DRAFT_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    MOE_CONFIG,
    PRE_NORMS,
    QK_NORM,
    ROPE_FREQS,
    SHARED_EXPERTS,
)

_DECODER = PRE_NORMS + ATTENTION + QK_NORM

# One projection and one set of norms for all MTP blocks: the converter writes them to each, the first is read.
_REPEATED = "the same values as the first MTP block's"
_MTP: tuple[Rule, ...] = (
    Rule(("blk.{bid}.nextn.eh_proj.weight",), ("mtp.fc.weight",), optional=_REPEATED),
    Rule(("blk.{bid}.nextn.enorm.weight",), ("mtp.pre_fc_norm_embedding.weight",), optional=_REPEATED),
    Rule(("blk.{bid}.nextn.hnorm.weight",), ("mtp.pre_fc_norm_hidden.weight",), optional=_REPEATED),
    Rule(("blk.{bid}.nextn.shared_head_norm.weight",), ("mtp.norm.weight",), optional=_REPEATED),
)

EXAONE_MOE = Architecture(
    names=("exaone-moe",),
    model_type="exaone_moe",
    model_class="ExaoneMoeForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + only(_DECODER, "trunk")
    + only(GATED_MLP, "trunk", "dense")
    + only(EXPERTS, "trunk", "moe")
    + only(SHARED_EXPERTS, "trunk", "moe", "has:expert_shared_count")
    + only((block("exp_probs_b.bias", "mlp.e_score_correction_bias"),), "trunk", "moe")
    + only(renamed(_DECODER + GATED_MLP, "model.layers.{bid}.", "mtp.layers.{nextn}.") + _MTP, "draft"),
    config=(
        *COMMON_CONFIG,
        *without(MOE_CONFIG, "n_routed_experts", "n_shared_experts", "scoring_func"),
        *DRAFT_CONFIG,
        header("num_experts", "expert_count"),
        header("num_shared_experts", "expert_shared_count", fallback=0),
        header("sliding_window", "attention.sliding_window"),
        derived("layer_types", "sliding_layer_types_4"),
        derived("mlp_layer_types"),
        derived("rope_parameters"),
        *assumed(hidden_act="silu"),
    ),
    skips=ROPE_FREQS,
)
