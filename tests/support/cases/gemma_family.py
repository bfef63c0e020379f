"""Gemma, its older and its newer kin. Gemma 3 itself is in `dense_core`."""

from __future__ import annotations

from support.conformance import Case

_BIDIRECTIONAL = {"use_bidirectional_attention": "false in every text model"}

CASES = (
    Case(
        "gemma",
        "GemmaForCausalLM",
        {"num_attention_heads": 4, "head_dim": 128, "tie_word_embeddings": True},
        tokenizer="gemma",
        ignore=_BIDIRECTIONAL,
    ),
    Case(
        "gemma2",
        "Gemma2ForCausalLM",
        {
            "num_attention_heads": 4,
            "head_dim": 128,
            "query_pre_attn_scalar": 128,
            "sliding_window": 16,
            "attn_logit_softcapping": 20.0,
            "final_logit_softcapping": 10.0,
            "tie_word_embeddings": True,
        },
        tokenizer="gemma",
        ignore=_BIDIRECTIONAL,
    ),
)
