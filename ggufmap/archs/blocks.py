"""Shared blocks of rows, composed by `+` in the family files."""

from __future__ import annotations

from ggufmap.archs.base import ConfigRow, Rule, Skip, assumed, biases, block, derived, header, top, weights

EMBEDDING: tuple[Rule, ...] = (
    top("token_embd.weight", "model.embed_tokens.weight"),
    top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
)

FINAL_NORM: tuple[Rule, ...] = (top("output_norm.weight", "model.norm.weight"),)

_QK = (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"))
_VO = (("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"))

ATTENTION: tuple[Rule, ...] = weights(_QK + _VO)
"""Separate projections, rows in checkpoint order."""

ATTENTION_BIAS: tuple[Rule, ...] = biases(_QK + _VO)

QKV_BIAS: tuple[Rule, ...] = tuple(block(f"{a}.bias", f"{b}.bias") for a, b in (*_QK, _VO[0]))
"""For families whose query, key and value projections always have one."""

ROPE_PERMUTED_ATTENTION: tuple[Rule, ...] = tuple(
    rule
    for module, heads in zip(_QK, ("attention.head_count", "attention.head_count_kv"), strict=True)
    for rule in weights((module,), f"rope_rows:{heads}") + biases((module,), f"rope_rows:{heads}")
) + (weights(_VO) + biases(_VO))
"""The converter turns each head's rows from (2, d/2) to (d/2, 2) for interleaved RoPE (conversion/llama.py)."""

QK_NORM: tuple[Rule, ...] = weights((("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")))

_GATED = (("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"))

GATED_MLP: tuple[Rule, ...] = weights(_GATED)
GATED_MLP_BIAS: tuple[Rule, ...] = biases(_GATED)

PRE_NORMS: tuple[Rule, ...] = (
    block("attn_norm.weight", "input_layernorm.weight"),
    block("ffn_norm.weight", "post_attention_layernorm.weight"),
)

ROPE_FREQS: tuple[Skip, ...] = (
    Skip("rope_freqs.weight", "RoPE frequency factors: compared with the config's scaling, not a parameter"),
)

COMMON_CONFIG: tuple[ConfigRow, ...] = (
    derived("vocab_size"),
    header("hidden_size", "embedding_length"),
    header("intermediate_size", "feed_forward_length"),
    derived("num_hidden_layers"),
    header("num_attention_heads", "attention.head_count"),
    derived("num_key_value_heads"),
    derived("head_dim"),
    header("max_position_embeddings", "context_length"),
    header("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    derived("tie_word_embeddings"),
    derived("bos_token_id"),
    derived("eos_token_id"),
    derived("pad_token_id"),
    *assumed(attention_dropout=0.0, initializer_range=0.02, use_cache=True),
)
"""Keys that every decoder-only family with RMS norms has."""
