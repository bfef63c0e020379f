"""The families of the first rows: Llama, Mistral, Qwen2, Qwen3, Gemma 3."""

from __future__ import annotations

from support.conformance import Case

_FULL = "the GGUF has no such key; every layer is a full one"

CASES = (
    Case("llama", "LlamaForCausalLM", tokenizer="llama"),
    Case(
        "mistral",
        "MistralForCausalLM",
        {"head_dim": 32, "sliding_window": None},
        tokenizer="llama",
        ignore={
            "architectures": "Mistral files are written as llama: the same computation",
            "model_type": "as architectures",
            "sliding_window": "no key in a llama header",
        },
    ),
    Case("qwen2", "Qwen2ForCausalLM", {"vocab_size": 544}, ignore={"max_window_layers": _FULL}),
    Case("qwen3", "Qwen3ForCausalLM", {"head_dim": 64}, ignore={"max_window_layers": _FULL}),
    Case(
        "gemma3",
        "Gemma3ForCausalLM",
        {
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "head_dim": 128,
            "query_pre_attn_scalar": 128,
            "sliding_window": 16,
            "tie_word_embeddings": True,
        },
        config_class="Gemma3TextConfig",
        tokenizer="gemma",
        ignore={
            "_sliding_window_pattern": "layer_types says the same",
            "use_bidirectional_attention": "false in every text model",
        },
    ),
)
