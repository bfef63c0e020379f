"""Falcon 7B (one key-value head, one norm) and the new decoder of 11B, 40B and 180B (grouped heads, two norms).

Source: llama.cpp 0c1e57098 conversion/falcon.py (query, key and value regrouped; no RoPE base, context length always
2048), src/models/falcon.cpp; vLLM 0.32.0 model_executor/models/falcon.py (regroups by name).
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, Variant, assumed, derived, header, top

_LAYER = "transformer.h.{bid}."


def _rows(*pairs: tuple[str, str], transform: str = "copy") -> tuple[Rule, ...]:
    return tuple(Rule((f"blk.{{bid}}.{a}",), (_LAYER + b,), transform) for a, b in pairs)


_KINDS = ("weight", "bias")
_RULES: tuple[Rule, ...] = (
    top("token_embd.weight", "transformer.word_embeddings.weight"),
    top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
    *(top(f"output_norm.{kind}", f"transformer.ln_f.{kind}") for kind in _KINDS),
    *_rows(
        ("attn_qkv.weight", "self_attention.query_key_value.weight"), transform="qkv_groups:attention.head_count_kv"
    ),
    *_rows(
        ("attn_output.weight", "self_attention.dense.weight"),
        ("ffn_up.weight", "mlp.dense_h_to_4h.weight"),
        ("ffn_down.weight", "mlp.dense_4h_to_h.weight"),
    ),
)
_ONE_NORM = _rows(*((f"attn_norm.{kind}", f"input_layernorm.{kind}") for kind in _KINDS))
_TWO_NORMS = _rows(
    *((f"attn_norm.{kind}", f"ln_mlp.{kind}") for kind in _KINDS),
    *((f"attn_norm_2.{kind}", f"ln_attn.{kind}") for kind in _KINDS),
)

FALCON = Architecture(
    names=("falcon",),
    model_type="falcon",
    model_class="FalconForCausalLM",
    variants=(Variant("two_attention_norms", "falcon", "FalconForCausalLM", _RULES + _TWO_NORMS),),
    rules=_RULES + _ONE_NORM,
    config=(
        derived("vocab_size"),
        header("hidden_size", "embedding_length"),
        derived("num_hidden_layers"),
        header("num_attention_heads", "attention.head_count"),
        derived("num_kv_heads", "num_key_value_heads"),
        header("ffn_hidden_size", "feed_forward_length"),
        header("max_position_embeddings", "context_length"),
        header("layer_norm_epsilon", "attention.layer_norm_epsilon"),
        derived("rope_parameters"),
        derived("new_decoder_architecture", "falcon_new_decoder"),
        derived("num_ln_in_parallel_attn", "falcon_norms"),
        derived("multi_query", "falcon_multi_query"),
        derived("tie_word_embeddings"),
        derived("bos_token_id"),
        derived("eos_token_id"),
        derived("pad_token_id"),
        *assumed(
            alibi=False, parallel_attn=True, bias=False, activation="gelu", hidden_dropout=0.0, attention_dropout=0.0
        ),
    ),
)
