"""Falcon-H1: attention and Mamba 2 side by side in every block.

The converter multiplies the model's muP factors into the weights and no header has them (llama.cpp 0c1e57098
conversion/falcon_h1.py), so the weights come back multiplied, and every factor in the config is 1: the same function.
Source: also vLLM 0.32.0 model_executor/models/falcon_h1.py.
"""

from __future__ import annotations

from dataclasses import replace

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, top, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, ROPE_FREQS
from ggufmap.archs.ssm import MAMBA2_CONFIG, MAMBA2_MIXER, moved

_MIXER = tuple(
    replace(rule, optional="this model's mixer has no norm") if "ssm_norm" in rule.tensors[0] else rule
    for rule in moved(MAMBA2_MIXER, ".mixer.", ".mamba.")
)
_RULES: tuple[Rule, ...] = (
    *EMBEDDING,
    top("output_norm.weight", "model.final_layernorm.weight"),
    *ATTENTION,
    *_MIXER,
    block("attn_norm.weight", "input_layernorm.weight"),
    block("ffn_norm.weight", "pre_ff_layernorm.weight"),
    block("ffn_norm", "pre_ff_layernorm.weight", optional="files from before the name had its suffix"),
    *weights(tuple((f"ffn_{part}", f"feed_forward.{part}_proj") for part in ("gate", "up", "down"))),
)

FALCON_H1 = Architecture(
    names=("falcon-h1",),
    model_type="falcon_h1",
    model_class="FalconH1ForCausalLM",
    rules=_RULES,
    config=(
        *COMMON_CONFIG,
        *(row for row in MAMBA2_CONFIG if row.key != "mamba_expand"),
        header("mamba_d_ssm", "ssm.inner_size"),
        derived("mamba_rms_norm", "mamba_norm"),
        derived("rope_parameters"),
        *assumed(
            hidden_act="silu",
            attention_bias=False,
            mlp_bias=False,
            projectors_bias=False,
            mamba_norm_before_gate=False,
            mamba_chunk_size=256,
            attention_in_multiplier=1.0,
            attention_out_multiplier=1.0,
            embedding_multiplier=1.0,
            key_multiplier=1.0,
            lm_head_multiplier=1.0,
            mlp_multipliers=[1.0, 1.0],
            ssm_in_multiplier=1.0,
            ssm_multipliers=[1.0, 1.0, 1.0, 1.0, 1.0],
            ssm_out_multiplier=1.0,
        ),
    ),
    skips=ROPE_FREQS,
)
