"""Nemotron and Minitron, dense: layernorm1p (stored plus one; vLLM adds one itself), squared ReLU, partial RoPE.

Source: llama.cpp 0c1e57098 conversion/nemotron.py, src/models/nemotron.cpp; vLLM 0.32.0
model_executor/models/nemotron.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, biases, block, derived, header, top, weights, without
from ggufmap.archs.blocks import ATTENTION, ATTENTION_BIAS, COMMON_CONFIG, EMBEDDING, ROPE_FREQS

_MLP = (("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"))
_NORMS = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))

NEMOTRON = Architecture(
    names=("nemotron",),
    model_type="nemotron",
    model_class="NemotronForCausalLM",
    rules=(
        *EMBEDDING,
        top("output_norm.weight", "model.norm.weight", "add:-1"),
        top("output_norm.bias", "model.norm.bias"),
        *weights(_NORMS, "add:-1"),
        *(block(f"{a}.bias", f"{b}.bias") for a, b in _NORMS),
        *ATTENTION,
        *ATTENTION_BIAS,
        *weights(_MLP),
        *biases(_MLP),
    ),
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps"),
        header("norm_eps", "attention.layer_norm_epsilon"),
        derived("rope_parameters"),
        derived("attention_bias", "output_bias"),
        derived("mlp_bias", "ffn_bias"),
        *assumed(hidden_act="relu2"),
    ),
    skips=ROPE_FREQS,
)
