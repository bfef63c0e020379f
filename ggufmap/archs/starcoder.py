"""StarCoder 2: LayerNorm, biases everywhere, an MLP without gate. vLLM runs it through its Transformers class.

Source: llama.cpp 0c1e57098 conversion/starcoder.py, src/models/starcoder2.cpp; transformers 5.19
models/starcoder2/modeling_starcoder2.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, biases, derived, header, top, weights, without
from ggufmap.archs.blocks import ATTENTION, ATTENTION_BIAS, COMMON_CONFIG, EMBEDDING, FINAL_NORM, PRE_NORMS, ROPE_FREQS

_MLP = (("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj"))
_NORMS = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))

STARCODER2 = Architecture(
    names=("starcoder2",),
    model_type="starcoder2",
    model_class="Starcoder2ForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + (top("output_norm.bias", "model.norm.bias"),)
    + PRE_NORMS
    + biases(_NORMS)
    + ATTENTION
    + ATTENTION_BIAS
    + weights(_MLP)
    + biases(_MLP),
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps", "head_dim"),
        header("norm_epsilon", "attention.layer_norm_epsilon"),
        derived("rope_parameters"),
        derived("use_bias", "ffn_bias"),
        # llama.cpp runs every layer with full attention, whatever the original said.
        *assumed(hidden_act="gelu_pytorch_tanh", sliding_window=None, embedding_dropout=0.0, residual_dropout=0.0),
    ),
    skips=ROPE_FREQS,
)
