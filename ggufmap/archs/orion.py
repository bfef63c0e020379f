"""Orion: Llama's tree with LayerNorm, whose epsilon the checkpoint's config calls rms_norm_eps.

transformers 5.19 has no Orion: its config is written as Llama's, which has all keys that vLLM's class reads.

Source: llama.cpp 0c1e57098 conversion/orion.py; vLLM 0.32.0 model_executor/models/orion.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, block, derived, header, top, without
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, GATED_MLP, PRE_NORMS, ROPE_FREQS

ORION = Architecture(
    names=("orion",),
    model_type="llama",
    model_class="OrionForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + (top("output_norm.bias", "model.norm.bias"),)
    + PRE_NORMS
    + (block("attn_norm.bias", "input_layernorm.bias"), block("ffn_norm.bias", "post_attention_layernorm.bias"))
    + ATTENTION
    + GATED_MLP,
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps"),
        header("rms_norm_eps", "attention.layer_norm_epsilon"),
        derived("rope_parameters"),
        *assumed(hidden_act="silu"),
    ),
    skips=ROPE_FREQS,
)
