"""Apertus: Llama's attention with norms of query and key, an MLP without gate, xIELU with constants of each block.

The header lists those constants; in the checkpoint they are tensors beside the MLP's weights.

Source: llama.cpp 0c1e57098 conversion/llama.py (ApertusModel), src/models/apertus.cpp; vLLM 0.32.0
model_executor/models/apertus.py, layers/activation.py (XIELU).
"""

from __future__ import annotations

from dataclasses import replace

from ggufmap.archs.base import Architecture, HeaderValue, assumed, block, derived, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, QK_NORM, ROPE_FREQS

_ACTIVATION = "model.layers.{bid}.mlp.act_fn."
_XIELU = (
    HeaderValue(_ACTIVATION + "alpha_p", "xielu.alpha_p"),
    HeaderValue(_ACTIVATION + "alpha_n", "xielu.alpha_n"),
    HeaderValue(_ACTIVATION + "beta", "xielu.beta", ()),
    HeaderValue(_ACTIVATION + "eps", "xielu.eps", ()),
)

APERTUS = Architecture(
    names=("apertus",),
    model_type="apertus",
    model_class="ApertusForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + QK_NORM
    + weights((("attn_norm", "attention_layernorm"), ("ffn_norm", "feedforward_layernorm"), ("ffn_up", "mlp.up_proj")))
    + (replace(block("ffn_down.weight", "mlp.down_proj.weight"), values=_XIELU),),
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters"),
        *assumed(hidden_act="xielu", attention_bias=False, mlp_bias=False),
    ),
    skips=ROPE_FREQS,
)
