"""Qwen2.5-VL and Qwen3-VL: the text of Qwen2 and Qwen3; with a projector file, the vision tower as well.

Text positions are equal in all sections of M-RoPE, so that the text alone is the plain family's.
Source: llama.cpp 0c1e57098 conversion/qwenvl.py, qwen3vl.py; vLLM 0.32.0 model_executor/models/qwen2_5_vl.py,
qwen3_vl.py, qwen3_vl_moe.py.
"""

from __future__ import annotations

from dataclasses import replace

from ggufmap.archs.base import Architecture, ConfigRow, Rule, Variant, assumed, block, derived, renamed, without
from ggufmap.archs.blocks import ATTENTION, ATTENTION_BIAS, EMBEDDING, FINAL_NORM, PRE_NORMS, QK_NORM, ROPE_FREQS
from ggufmap.archs.qwen import QWEN2, QWEN3, QWEN3_MOE
from ggufmap.archs.vision import QWEN3_TOWER, QWEN3_VISION, QWEN25_TOWER, QWEN25_VISION


def _in_sections(config: tuple[ConfigRow, ...], function: str) -> tuple[ConfigRow, ...]:
    """The text model's keys with RoPE in sections."""
    return (*without(config, "rope_parameters"), derived("rope_parameters", function))


def _in_language_model(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return renamed(rules, "model.", "model.language_model.")


QWEN2VL = Architecture(
    names=("qwen2vl",),
    model_type="qwen2",
    model_class="Qwen2ForCausalLM",
    rules=QWEN2.rules,
    config=QWEN2.config,
    skips=ROPE_FREQS,
    variants=(
        Variant(
            "projector:qwen2.5vl_merger",
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            rules=QWEN2.rules + QWEN25_TOWER,
            config=_in_sections(QWEN2.config, "sections_rope_parameters"),
            vision=QWEN25_VISION,
        ),
    ),
)

QWEN3VL = Architecture(
    names=("qwen3vl",),
    model_type="qwen3",
    model_class="Qwen3ForCausalLM",
    rules=QWEN3.rules,
    config=QWEN3.config,
    skips=ROPE_FREQS,
    variants=(
        Variant(
            "projector:qwen3vl_merger",
            "qwen3_vl",
            "Qwen3VLForConditionalGeneration",
            rules=_in_language_model(QWEN3.rules) + QWEN3_TOWER,
            config=_in_sections(QWEN3.config, "interleaved_rope_parameters"),
            vision=QWEN3_VISION,
        ),
    ),
)

_EXPERTS = "model.layers.{bid}.mlp.experts"

_TURNED_EXPERTS: tuple[Rule, ...] = (
    block("ffn_gate_inp.weight", "mlp.gate.weight"),
    Rule(
        ("blk.{bid}.ffn_gate_exps.weight", "blk.{bid}.ffn_up_exps.weight"),
        (f"{_EXPERTS}.gate_up_proj",),
        "stacked_columns",
    ),
    Rule(("blk.{bid}.ffn_down_exps.weight",), (f"{_EXPERTS}.down_proj",), "stacked_columns"),
)
"""The checkpoint has the experts' matrices the other way round, gate and up in one."""

QWEN3VL_MOE = Architecture(
    names=("qwen3vlmoe",),
    model_type="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    rules=QWEN3_MOE.rules,
    config=QWEN3_MOE.config,
    skips=ROPE_FREQS,
    variants=(
        Variant(
            "projector:qwen3vl_merger",
            "qwen3_vl_moe",
            "Qwen3VLMoeForConditionalGeneration",
            rules=_in_language_model(
                EMBEDDING + ATTENTION + ATTENTION_BIAS + QK_NORM + _TURNED_EXPERTS + PRE_NORMS + FINAL_NORM
            )
            + QWEN3_TOWER,
            config=_in_sections(QWEN3_MOE.config, "interleaved_rope_parameters"),
            vision=replace(
                QWEN3_VISION,
                text_model_type="qwen3_vl_moe_text",
                config=(
                    *without(QWEN3_VISION.config, "model_type"),
                    *assumed(model_type="qwen3_vl_moe_vision"),
                ),
            ),
        ),
    ),
)
