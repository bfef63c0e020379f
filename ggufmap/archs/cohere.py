"""Cohere: Command R (`command-r`), Command R7B (`cohere2`) and its like with experts (`cohere2moe`).

One norm per block, LayerNorm without bias (or RMSNorm, with experts), tied head.

Source: llama.cpp 0c1e57098 conversion/command_r.py, src/models/command-r.cpp, cohere2.cpp; vLLM 0.32.0
model_executor/models/commandr.py, cohere2_moe.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Skip, assumed, derived, header, only, weights, without
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, EXPERTS, FINAL_NORM, GATED_MLP, SHARED_EXPERTS

_QK_NORM = weights(
    (("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")),
    optional="only Command R+ has it",
)
_RULES = EMBEDDING + FINAL_NORM + ATTENTION + GATED_MLP + weights((("attn_norm", "input_layernorm"),))

# vLLM takes RMSNorm where the config has rms_norm_eps.
_CONFIG: tuple[ConfigRow, ...] = (
    *without(COMMON_CONFIG, "rms_norm_eps"),
    header("layer_norm_eps", "attention.layer_norm_epsilon"),
    header("logit_scale", "logit_scale"),
    derived("rope_parameters"),
    derived("use_qk_norm", "qk_norm"),
    *assumed(hidden_act="silu", attention_bias=False),
)

COMMAND_R = Architecture(
    names=("command-r",),
    model_type="cohere",
    model_class="CohereForCausalLM",
    rules=_RULES + _QK_NORM,
    config=_CONFIG,
)

COHERE2 = Architecture(
    names=("cohere2",),
    model_type="cohere2",
    model_class="Cohere2ForCausalLM",
    rules=_RULES,
    config=(
        *_CONFIG,
        header("sliding_window", "attention.sliding_window"),
        derived("layer_types", "sliding_layer_types_4"),
    ),
)

_NO_DRAFT_CLASS = Skip("blk.{bid}.*", "the draft's block: vLLM has no draft class for this family", ("draft",))
_MOE_BLOCK = (
    *ATTENTION,
    *weights((("attn_norm", "input_layernorm"),)),
    *only(GATED_MLP, "dense"),
    *only(EXPERTS, "moe"),
    *only(SHARED_EXPERTS, "moe", "has:expert_shared_count"),
)

COHERE2_MOE = Architecture(
    names=("cohere2moe",),
    model_type="cohere2_moe",
    model_class="Cohere2MoeForCausalLM",
    rules=EMBEDDING + FINAL_NORM + only(_MOE_BLOCK, "trunk"),
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps", "intermediate_size"),
        header("rms_norm_eps", "attention.layer_norm_rms_epsilon", optional=True),
        header("layer_norm_eps", "attention.layer_norm_epsilon", optional=True),
        header("intermediate_size", "expert_feed_forward_length"),
        header("prefix_dense_intermediate_size", "feed_forward_length"),
        header("logit_scale", "logit_scale"),
        header("sliding_window", "attention.sliding_window"),
        header("num_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("num_shared_experts", "expert_shared_count", fallback=0),
        derived("layer_types", "sliding_layer_types_4"),
        derived("mlp_layer_types"),
        derived("expert_selection_fn", "scoring_func"),
        derived("norm_topk_prob"),
        header("rope_theta", "rope.freq_base"),
        derived("rope_parameters"),
        # The converter refuses any other combination of the shared experts.
        *assumed(shared_expert_combination_strategy="average", prefix_dense_sliding_window_pattern=1),
        *assumed(hidden_act="silu", attention_bias=False),
    ),
    skips=(_NO_DRAFT_CLASS,),
)
