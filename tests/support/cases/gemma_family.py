"""Gemma, its older and its newer kin. Gemma 3 itself is in `dense_core`."""

from __future__ import annotations

from typing import Any

from support.conformance import Case, Tensors, values

_BIDIRECTIONAL = {"use_bidirectional_attention": "false in every text model"}

_GEMMA4 = {
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "head_dim": 64,
    "global_head_dim": 128,
    "sliding_window": 16,
    "tie_word_embeddings": True,
}


def _with_shared_keys(tensors: Tensors, config: Any) -> Tensors:
    """`tensors` with keys and values for the blocks that use an earlier block's: repositories have them, unused."""
    own = config.num_hidden_layers - config.num_kv_shared_layers
    extra: Tensors = {}
    for bid in range(own, config.num_hidden_layers):
        like = max(b for b in range(own) if config.layer_types[b] == config.layer_types[bid])
        for part in ("k_proj", "v_proj", "k_norm"):
            stem = f"self_attn.{part}.weight"
            name = f"model.layers.{bid}.{stem}"
            extra[name] = values(f"shared/{name}", tuple(tensors[f"model.layers.{like}.{stem}"].shape))
    return {**tensors, **extra}


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
    Case(
        "gemma3n",
        "Gemma3nForCausalLM",
        {
            "vocab_size_per_layer_input": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "head_dim": 64,
            "sliding_window": 16,
            "num_kv_shared_layers": 2,
            "laurel_rank": 32,
            "hidden_size_per_layer_input": 32,
            "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "tie_word_embeddings": True,
        },
        config_class="Gemma3nTextConfig",
        tokenizer="gemma",
        publish=_with_shared_keys,
        lost={
            f"model.layers.{bid}.self_attn.{part}": "the block attends with an earlier block's keys and values"
            for bid in (4, 5)
            for part in ("k_", "v_")
        },
    ),
    Case(
        "gemma4",
        "Gemma4ForCausalLM",
        {
            **_GEMMA4,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        },
        config_class="Gemma4TextConfig",
        tokenizer="gemma",
        pre="gemma4",
        publish=_with_shared_keys,
        ignore=_BIDIRECTIONAL,
        lost={
            f"model.layers.{bid}.self_attn.{part}": "the block attends with an earlier block's keys and values"
            for bid in (4, 5)
            for part in ("k_", "v_")
        },
    ),
    Case(
        "gemma4_moe",
        "Gemma4ForCausalLM",
        {
            **_GEMMA4,
            "vocab_size_per_layer_input": 512,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 256,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 20.0,
        },
        config_class="Gemma4TextConfig",
        tokenizer="gemma",
        pre="gemma4",
        ignore=_BIDIRECTIONAL,
    ),
)
