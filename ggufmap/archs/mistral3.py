"""Ministral 3 and Mistral Small 3.1 (text): `mistral3`.

Source: llama.cpp 0c1e57098 conversion/mistral3.py (a Llama with permuted rows), src/models/mistral3.cpp; vLLM 0.32.0
model_executor/models/mistral.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Variant, assumed, derived
from ggufmap.archs.blocks import (
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    ROPE_FREQS,
    ROPE_PERMUTED_ATTENTION,
)

MISTRAL3 = Architecture(
    names=("mistral3",),
    model_type="ministral3",
    model_class="Ministral3ForCausalLM",
    variants=(Variant("no_temperature_scale", "mistral", "MistralForCausalLM"),),
    rules=EMBEDDING + ROPE_PERMUTED_ATTENTION + GATED_MLP + PRE_NORMS + FINAL_NORM,
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters", "mistral3_rope"),
        *assumed(hidden_act="silu", sliding_window=None),
    ),
    skips=ROPE_FREQS,
)
