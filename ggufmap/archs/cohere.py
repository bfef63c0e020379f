"""Cohere: Command R (`command-r`) and Command R7B (`cohere2`): one norm per block, LayerNorm without bias, tied head.

Source: llama.cpp 0c1e57098 conversion/command_r.py, src/models/command-r.cpp, cohere2.cpp; vLLM 0.32.0
model_executor/models/commandr.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, assumed, derived, header, weights, without
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, GATED_MLP

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
