"""EXAONE 3 and 3.5 (`exaone`), EXAONE 4 (`exaone4`: norms after attention and MLP, sliding layers in the 32B model).

transformers 5.19 has no EXAONE 3: its config is written as Llama's, with the keys that vLLM's class reads besides.

Source: llama.cpp 0c1e57098 conversion/exaone.py, src/models/exaone.cpp, exaone4.cpp; vLLM 0.32.0
model_executor/models/exaone.py, exaone4.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, top, weights
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, FINAL_NORM, GATED_MLP, QK_NORM, ROPE_FREQS

EXAONE4 = Architecture(
    names=("exaone4",),
    model_type="exaone4",
    model_class="Exaone4ForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + QK_NORM
    + GATED_MLP
    + weights((("post_attention_norm", "post_attention_layernorm"), ("post_ffw_norm", "post_feedforward_layernorm"))),
    config=(
        *COMMON_CONFIG,
        header("sliding_window", "attention.sliding_window", nullable=True),
        derived("layer_types", "sliding_layer_types_4"),
        derived("rope_parameters"),
        *assumed(hidden_act="silu"),
    ),
    skips=ROPE_FREQS,
)

_BLOCK = (
    ("attn_norm", "ln_1"),
    ("attn_q", "attn.attention.q_proj"),
    ("attn_k", "attn.attention.k_proj"),
    ("attn_v", "attn.attention.v_proj"),
    ("attn_output", "attn.attention.out_proj"),
    ("ffn_norm", "ln_2"),
    ("ffn_gate", "mlp.c_fc_0"),
    ("ffn_up", "mlp.c_fc_1"),
    ("ffn_down", "mlp.c_proj"),
)

EXAONE = Architecture(
    names=("exaone",),
    model_type="llama",
    model_class="ExaoneForCausalLM",
    rules=(
        top("token_embd.weight", "transformer.wte.weight"),
        top("output_norm.weight", "transformer.ln_f.weight"),
        top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
        *(Rule((f"blk.{{bid}}.{a}.weight",), (f"transformer.h.{{bid}}.{b}.weight",)) for a, b in _BLOCK),
    ),
    config=(
        *COMMON_CONFIG,
        header("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
        derived("rope_parameters"),
        *assumed(activation_function="silu", hidden_act="silu", attention_bias=False, mlp_bias=False),
    ),
    skips=ROPE_FREQS,
)
