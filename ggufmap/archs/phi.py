"""Phi-3, Phi-3.5 and Phi-4 (`phi3`): fused query, key and value, fused gate and up, LongRoPE.

Source: llama.cpp 0c1e57098 conversion/phi.py, src/models/phi3.cpp; vLLM 0.32.0 model_executor/models/phi3.py (Llama's
module tree with the fused names kept).
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Skip, assumed, block, derived, header, top, weights, without
from ggufmap.archs.blocks import COMMON_CONFIG, EMBEDDING, FINAL_NORM, PRE_NORMS, ROPE_FREQS

_FUSED = (
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
)

ROPE_FACTORS: tuple[Skip, ...] = (
    *ROPE_FREQS,
    Skip("rope_factors_long.weight", "LongRoPE factors: they are in the config (rope_parameters.long_factor)"),
    Skip("rope_factors_short.weight", "LongRoPE factors: they are in the config (rope_parameters.short_factor)"),
)

PHI3 = Architecture(
    names=("phi3",),
    model_type="phi3",
    model_class="Phi3ForCausalLM",
    rules=EMBEDDING + FINAL_NORM + PRE_NORMS + weights(_FUSED),
    config=(
        *COMMON_CONFIG,
        derived("rope_parameters", "phi3_rope_parameters"),
        derived("original_max_position_embeddings"),
        derived("sliding_window", "sliding_window_or_none"),
        *assumed(hidden_act="silu", resid_pdrop=0.0, embd_pdrop=0.0),
    ),
    skips=ROPE_FACTORS,
)

_PHI2 = (
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.dense"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
    ("attn_norm", "input_layernorm"),
)

PHI2 = Architecture(
    names=("phi2",),
    model_type="phi",
    model_class="PhiForCausalLM",
    rules=EMBEDDING
    + weights(_PHI2)
    + tuple(block(f"{a}.bias", f"{b}.bias") for a, b in _PHI2)
    + tuple(top(f"output_norm.{x}", f"model.final_layernorm.{x}") for x in ("weight", "bias"))
    + (top("output.bias", "lm_head.bias"),),
    config=(
        *without(COMMON_CONFIG, "rms_norm_eps", "head_dim"),
        header("layer_norm_eps", "attention.layer_norm_epsilon"),
        derived("rope_parameters"),
        *assumed(hidden_act="gelu_new", resid_pdrop=0.0, embd_pdrop=0.0, qk_layernorm=False),
    ),
)
"""Runs through vLLM's Transformers class: the checkpoint's own names."""
