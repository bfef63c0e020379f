"""GLM-4 dense: `glm4` (0414), and `chatglm`, which holds two spellings of GLM-4-9B, ChatGLM2 and 3.

A `chatglm` file from an original repository has fused projections (`transformer.encoder.layers`), one from a `-hf`
repository separate ones (`model.layers`); nothing else tells them apart.

Source: llama.cpp 0c1e57098 conversion/glm.py, conversion/chatglm.py, src/models/glm4.cpp; vLLM 0.32.0
model_executor/models/glm4.py, chatglm.py and, for GlmForCausalLM, the Transformers class.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, Variant, assumed, biases, derived, header, top, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, PRE_NORMS, ROPE_FREQS

_QKV = (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"))
_FUSED_MLP = weights((("ffn_up", "mlp.gate_up_proj"), ("ffn_down", "mlp.down_proj")))
_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
)
_CONFIG: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    derived("rope_parameters"),
    derived("attention_bias", "qkv_bias"),
    *assumed(hidden_act="silu"),
)

GLM4 = Architecture(
    names=("glm4",),
    model_type="glm4",
    model_class="Glm4ForCausalLM",
    rules=EMBEDDING + FINAL_NORM + ATTENTION + biases(_QKV) + weights(_NORMS) + _FUSED_MLP,
    config=_CONFIG,
    skips=ROPE_FREQS,
)

_LAYER = "transformer.encoder.layers.{bid}."


def _own(*pairs: tuple[str, str]) -> tuple[Rule, ...]:
    return tuple(Rule((f"blk.{{bid}}.{a}",), (_LAYER + b,)) for a, b in pairs)


_CHATGLM: tuple[Rule, ...] = (
    top("token_embd.weight", "transformer.embedding.word_embeddings.weight"),
    top("output_norm.weight", "transformer.encoder.final_layernorm.weight"),
    top("output.weight", "transformer.output_layer.weight"),
    *_own(
        ("attn_norm.weight", "input_layernorm.weight"),
        ("attn_qkv.weight", "self_attention.query_key_value.weight"),
        ("attn_output.weight", "self_attention.dense.weight"),
        ("ffn_norm.weight", "post_attention_layernorm.weight"),
        ("ffn_up.weight", "mlp.dense_h_to_4h.weight"),
        ("ffn_down.weight", "mlp.dense_4h_to_h.weight"),
    ),
    Rule(
        ("blk.{bid}.attn_qkv.bias",),
        (_LAYER + "self_attention.query_key_value.bias",),
        optional="this model has no such bias",
    ),
)

_CHATGLM_CONFIG: tuple[ConfigRow, ...] = (
    header("hidden_size", "embedding_length"),
    derived("num_layers", "num_hidden_layers"),
    derived("padded_vocab_size", "vocab_size"),
    derived("vocab_size"),
    header("ffn_hidden_size", "feed_forward_length"),
    derived("kv_channels", "head_dim"),
    header("num_attention_heads", "attention.head_count"),
    derived("multi_query_group_num", "num_key_value_heads"),
    derived("multi_query_attention", "grouped_query"),
    header("seq_length", "context_length"),
    header("layernorm_epsilon", "attention.layer_norm_rms_epsilon"),
    derived("add_qkv_bias", "fused_qkv_bias"),
    derived("rope_ratio"),
    derived("tie_word_embeddings"),
    derived("bos_token_id"),
    derived("eos_token_id"),
    derived("pad_token_id"),
    *assumed(
        rmsnorm=True,
        post_layer_norm=True,
        add_bias_linear=False,
        apply_residual_connection_post_layernorm=False,
        fp32_residual_connection=False,
        original_rope=True,
        interleaved_qkv=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    ),
)

CHATGLM = Architecture(
    names=("chatglm",),
    model_type="glm",
    model_class="GlmForCausalLM",
    variants=(Variant("fused_qkv", "chatglm", "ChatGLMForConditionalGeneration", _CHATGLM, _CHATGLM_CONFIG),),
    rules=EMBEDDING + FINAL_NORM + ATTENTION + biases(_QKV) + PRE_NORMS + _FUSED_MLP,
    config=_CONFIG,
    skips=ROPE_FREQS,
)
