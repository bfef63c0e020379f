"""Gemma 4, text part: heads of two sizes, blocks with an earlier block's keys, keys as values, experts beside the MLP.

Source: llama.cpp 0c1e57098 conversion/gemma.py (Gemma4Model: names only), src/models/gemma4.cpp; vLLM 0.32.0
model_executor/models/gemma4.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, top, weights, without
from ggufmap.archs.blocks import COMMON_CONFIG, EMBEDDING, FINAL_NORM, GATED_MLP, ROPE_FREQS
from ggufmap.archs.gemma import SANDWICH_NORMS
from ggufmap.archs.gemma_n import UNUSED_KEYS

_NO_VALUES = "keys are the values of this block"
_NO_PER_LAYER = "a model without per-layer embeddings"

_ATTENTION: tuple[Rule, ...] = (
    weights((("attn_q", "self_attn.q_proj"), ("attn_q_norm", "self_attn.q_norm"), ("attn_output", "self_attn.o_proj")))
    + only(weights((("attn_k", "self_attn.k_proj"), ("attn_k_norm", "self_attn.k_norm"))), "own_keys")
    + only(weights((("attn_v", "self_attn.v_proj"),), optional=_NO_VALUES), "own_keys")
)

_PER_LAYER: tuple[Rule, ...] = (
    top("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", optional=_NO_PER_LAYER),
    top("per_layer_model_proj.weight", "model.per_layer_model_projection.weight", optional=_NO_PER_LAYER),
    top("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", optional=_NO_PER_LAYER),
    *weights(
        (
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
        ),
        optional=_NO_PER_LAYER,
    ),
)

_EXPERTS: tuple[Rule, ...] = only(
    (
        block("ffn_gate_inp.weight", "router.proj.weight"),
        block("ffn_gate_inp.scale", "router.scale"),
        block("ffn_down_exps.scale", "router.per_expert_scale"),
        block("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
        block("ffn_down_exps.weight", "experts.down_proj"),
        block("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"),
        block("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"),
        block("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"),
    ),
    "has:expert_count",
)

GEMMA4 = Architecture(
    names=("gemma4",),
    model_type="gemma4_text",
    model_class="Gemma4ForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + _ATTENTION
    + GATED_MLP
    + weights(SANDWICH_NORMS)
    + (block("layer_output_scale.weight", "layer_scalar"),)
    + _PER_LAYER
    + _EXPERTS,
    config=(
        *without(COMMON_CONFIG, "intermediate_size", "num_key_value_heads", "head_dim"),
        derived("intermediate_size", "narrowest_mlp"),
        derived("use_double_wide_mlp"),
        derived("num_key_value_heads", "sliding_key_value_heads"),
        header("head_dim", "attention.key_length_swa"),
        derived("per_layer_config", "gemma4_full_layers"),
        derived("attention_k_eq_v"),
        header("num_kv_shared_layers", "attention.shared_kv_layers", fallback=0),
        header("sliding_window", "attention.sliding_window"),
        derived("layer_types", "sliding_layer_types_6"),
        derived("rope_parameters", "gemma4_rope_parameters"),
        header("hidden_size_per_layer_input", "embedding_length_per_layer_input", fallback=0),
        derived("vocab_size_per_layer_input", "vocab_size_per_layer"),
        derived("enable_moe_block", "has_experts"),
        header("num_experts", "expert_count", nullable=True),
        header("top_k_experts", "expert_used_count", nullable=True),
        header("moe_intermediate_size", "expert_feed_forward_length", nullable=True),
        header("final_logit_softcapping", "final_logit_softcapping", nullable=True),
        *assumed(hidden_activation="gelu_pytorch_tanh", attention_bias=False),
    ),
    skips=(*ROPE_FREQS, *UNUSED_KEYS),
    bf16_only="Gemma 4 activations exceed fp16's range (65504)",
)
