"""BLOOM: ALiBi, LayerNorm after the embedding, query, key and value fused head by head.

Source: llama.cpp 0c1e57098 conversion/bloom.py, src/models/bloom.cpp; vLLM 0.32.0 model_executor/models/bloom.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, top

_BLOCK = (
    ("attn_norm", "input_layernorm", "copy"),
    ("attn_qkv", "self_attention.query_key_value", "qkv_heads:attention.head_count"),
    ("attn_output", "self_attention.dense", "copy"),
    ("ffn_norm", "post_attention_layernorm", "copy"),
    ("ffn_up", "mlp.dense_h_to_4h", "copy"),
    ("ffn_down", "mlp.dense_4h_to_h", "copy"),
)
_TOP = (
    ("token_embd_norm", "transformer.word_embeddings_layernorm"),
    ("output_norm", "transformer.ln_f"),
)
_KINDS = ("weight", "bias")

BLOOM = Architecture(
    names=("bloom",),
    model_type="bloom",
    model_class="BloomForCausalLM",
    rules=(
        top("token_embd.weight", "transformer.word_embeddings.weight"),
        top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
        *(top(f"{a}.{kind}", f"{b}.{kind}") for a, b in _TOP for kind in _KINDS),
        *(
            Rule((f"blk.{{bid}}.{a}.{kind}",), (f"transformer.h.{{bid}}.{b}.{kind}",), transform)
            for a, b, transform in _BLOCK
            for kind in _KINDS
        ),
    ),
    config=(
        derived("vocab_size"),
        header("hidden_size", "embedding_length"),
        derived("n_layer", "num_hidden_layers"),
        header("n_head", "attention.head_count"),
        header("seq_length", "context_length"),
        header("layer_norm_epsilon", "attention.layer_norm_epsilon"),
        derived("tie_word_embeddings"),
        derived("bos_token_id"),
        derived("eos_token_id"),
        derived("pad_token_id"),
        *assumed(
            apply_residual_connection_post_layernorm=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            slow_but_exact=False,
        ),
    ),
)
