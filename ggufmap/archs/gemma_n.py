"""Gemma 3n (`gemma3n`): AltUp, LAuReL, per-layer embeddings, the last blocks with the key-values of earlier ones.

Source: llama.cpp 0c1e57098 conversion/gemma.py (Gemma3NModel: norms as they are, AltUp's projections stacked,
embeddings padded to vocab_size), src/models/gemma3n.cpp; vLLM 0.32.0 model_executor/models/gemma3n.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, Skip, assumed, block, derived, header, only, top, weights
from ggufmap.archs.blocks import COMMON_CONFIG, EMBEDDING, FINAL_NORM, GATED_MLP, ROPE_FREQS
from ggufmap.archs.gemma import SANDWICH_NORMS

PER_LAYER_INPUT: tuple[Rule, ...] = (
    top("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
    top("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
    top("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
    *weights(
        (
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
        )
    ),
)
"""An embedding per layer, gated into each block's output."""

_KEYS = (("attn_k", "self_attn.k_proj"), ("attn_k_norm", "self_attn.k_norm"), ("attn_v", "self_attn.v_proj"))

SHARED_KEYS_ATTENTION: tuple[Rule, ...] = weights(
    (("attn_q", "self_attn.q_proj"), ("attn_q_norm", "self_attn.q_norm"), ("attn_output", "self_attn.o_proj"))
) + only(weights(_KEYS), "own_keys")
"""The last blocks attend with the keys and values of an earlier one."""

UNUSED_KEYS: tuple[Skip, ...] = tuple(
    Skip(
        f"blk.{{bid}}.{tensor}.weight",
        "this block attends with an earlier block's keys and values, its own are never used",
        blocks=("shared_keys",),
    )
    for tensor, _ in _KEYS
)

_ALTUP: tuple[Rule, ...] = (
    Rule(("altup_proj.weight",), ("model.altup_projections.{eid}.weight",), "experts"),
    Rule(("altup_unembd_proj.weight",), ("model.altup_unembed_projections.{eid}.weight",), "experts"),
    block("altup_correct_scale.weight", "altup.correct_output_scale"),
    *weights(
        (
            ("altup_correct_coef", "altup.correction_coefs"),
            ("altup_predict_coef", "altup.prediction_coefs"),
            ("altup_router", "altup.modality_router"),
            ("altup_router_norm", "altup.router_norm"),
            ("laurel_l", "laurel.linear_left"),
            ("laurel_r", "laurel.linear_right"),
            ("laurel_post_norm", "laurel.post_laurel_norm"),
        )
    ),
)

GEMMA3N = Architecture(
    names=("gemma3n",),
    model_type="gemma3n_text",
    model_class="Gemma3nForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + SHARED_KEYS_ATTENTION
    + GATED_MLP
    + weights(SANDWICH_NORMS)
    + PER_LAYER_INPUT
    + _ALTUP,
    config=(
        *(row for row in COMMON_CONFIG if row.key != "intermediate_size"),
        derived("intermediate_size", "intermediate_sizes"),
        header("sliding_window", "attention.sliding_window"),
        derived("layer_types", "sliding_layer_types_5"),
        derived("rope_parameters", "rope_parameters_by_layer_type"),
        derived("activation_sparsity_pattern", "activation_sparsity"),
        header("altup_active_idx", "altup.active_idx"),
        header("altup_num_inputs", "altup.num_inputs"),
        header("hidden_size_per_layer_input", "embedding_length_per_layer_input"),
        header("num_kv_shared_layers", "attention.shared_kv_layers"),
        derived("vocab_size_per_layer_input"),
        derived("laurel_rank"),
        header("final_logit_softcapping", "final_logit_softcapping", fallback=30.0),
        *assumed(
            hidden_activation="gelu_pytorch_tanh", attention_bias=False, altup_coef_clip=120.0, altup_correct_scale=True
        ),
    ),
    skips=(*ROPE_FREQS, *UNUSED_KEYS),
    bf16_only="Gemma 3n activations exceed fp16's range (65504)",
)
