"""GPT-NeoX (Pythia, GPT-NeoX-20B): parallel or sequential residual, LayerNorm, query, key and value fused head by head.

Source: llama.cpp 0c1e57098 conversion/gptneox.py, src/models/gptneox.cpp; vLLM 0.32.0 runs its Transformers class.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, top, without
from ggufmap.archs.blocks import COMMON_CONFIG

_BLOCK = (
    ("attn_norm", "input_layernorm", "copy"),
    ("attn_qkv", "attention.query_key_value", "qkv_heads:attention.head_count"),
    ("attn_output", "attention.dense", "copy"),
    ("ffn_norm", "post_attention_layernorm", "copy"),
    ("ffn_up", "mlp.dense_h_to_4h", "copy"),
    ("ffn_down", "mlp.dense_4h_to_h", "copy"),
)
_KINDS = ("weight", "bias")

GPTNEOX = Architecture(
    names=("gptneox",),
    model_type="gpt_neox",
    model_class="GPTNeoXForCausalLM",
    rules=(
        top("token_embd.weight", "gpt_neox.embed_in.weight"),
        top("output.weight", "embed_out.weight", optional="tied to token_embd.weight"),
        *(top(f"output_norm.{kind}", f"gpt_neox.final_layer_norm.{kind}") for kind in _KINDS),
        *(
            Rule((f"blk.{{bid}}.{a}.{kind}",), (f"gpt_neox.layers.{{bid}}.{b}.{kind}",), transform)
            for a, b, transform in _BLOCK
            for kind in _KINDS
        ),
    ),
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps", "head_dim", "num_key_value_heads"),
        header("layer_norm_eps", "attention.layer_norm_epsilon"),
        derived("use_parallel_residual", "parallel_residual"),
        derived("rope_parameters"),
        derived("attention_bias", "fused_qkv_bias"),
        *assumed(hidden_act="gelu", hidden_dropout=0.0, classifier_dropout=0.1, is_decoder=False),
    ),
)
