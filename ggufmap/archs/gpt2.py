"""GPT-2: learned positions, LayerNorm, Conv1D weights (which the converter turns; vLLM turns the checkpoint's itself).

Source: llama.cpp 0c1e57098 conversion/gpt2.py, src/models/gpt2.cpp; vLLM 0.32.0 model_executor/models/gpt2.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, top

_LAYER = "transformer.h.{bid}."
_CONV1D = (
    ("attn_qkv", "attn.c_attn"),
    ("attn_output", "attn.c_proj"),
    ("ffn_up", "mlp.c_fc"),
    ("ffn_down", "mlp.c_proj"),
)
_NORMS = (("attn_norm", "ln_1"), ("ffn_norm", "ln_2"))


def _rows(pairs: tuple[tuple[str, str], ...], kind: str, transform: str = "copy") -> tuple[Rule, ...]:
    return tuple(Rule((f"blk.{{bid}}.{a}.{kind}",), (f"{_LAYER}{b}.{kind}",), transform) for a, b in pairs)


GPT2 = Architecture(
    names=("gpt2",),
    model_type="gpt2",
    model_class="GPT2LMHeadModel",
    rules=(
        top("token_embd.weight", "transformer.wte.weight"),
        top("position_embd.weight", "transformer.wpe.weight"),
        top("output_norm.weight", "transformer.ln_f.weight"),
        top("output_norm.bias", "transformer.ln_f.bias"),
        top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
        *_rows(_CONV1D, "weight", "transpose"),
        *_rows(_CONV1D, "bias"),
        *_rows(_NORMS, "weight"),
        *_rows(_NORMS, "bias"),
    ),
    config=(
        derived("vocab_size"),
        header("n_positions", "context_length"),
        header("n_ctx", "context_length"),
        header("n_embd", "embedding_length"),
        header("n_inner", "feed_forward_length"),
        derived("n_layer", "num_hidden_layers"),
        header("n_head", "attention.head_count"),
        header("layer_norm_epsilon", "attention.layer_norm_epsilon"),
        derived("tie_word_embeddings"),
        derived("bos_token_id"),
        derived("eos_token_id"),
        derived("pad_token_id"),
        *assumed(
            activation_function="gelu_new",
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
            reorder_and_upcast_attn=False,
            add_cross_attention=False,
        ),
    ),
)
