"""MiniCPM (Llama's tree with three scales) and MiniCPM3 (multi-head latent attention, kv_b in one piece).

transformers 5.19 has no MiniCPM: its config is written as Llama's, with the keys that vLLM's class reads besides.

Source: llama.cpp 0c1e57098 conversion/minicpm.py, src/models/minicpm.cpp, minicpm3.cpp (scales are constants there);
vLLM 0.32.0 model_executor/models/minicpm.py, minicpm3.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, assumed, derived, header, weights
from ggufmap.archs.blocks import (
    BASE_CONFIG,
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    ROPE_PERMUTED_ATTENTION,
)
from ggufmap.archs.phi import ROPE_FACTORS

MINICPM = Architecture(
    names=("minicpm",),
    model_type="llama",
    model_class="MiniCPMForCausalLM",
    rules=EMBEDDING + FINAL_NORM + PRE_NORMS + ROPE_PERMUTED_ATTENTION + GATED_MLP,
    config=(
        *COMMON_CONFIG,
        derived("scale_emb", "minicpm_scale_emb"),
        derived("scale_depth", "minicpm_scale_depth"),
        derived("dim_model_base", "minicpm_dim_base"),
        derived("rope_parameters", "longrope_parameters"),
        *assumed(hidden_act="silu"),
    ),
    skips=ROPE_FACTORS,
)

_LATENT = (
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_output", "self_attn.o_proj"),
)

MINICPM3 = Architecture(
    names=("minicpm3",),
    model_type="minicpm3",
    model_class="MiniCPM3ForCausalLM",
    rules=EMBEDDING + FINAL_NORM + PRE_NORMS + weights(_LATENT) + GATED_MLP,
    config=(
        *BASE_CONFIG,
        derived("num_key_value_heads"),
        header("q_lora_rank", "attention.q_lora_rank"),
        header("kv_lora_rank", "attention.kv_lora_rank"),
        derived("qk_nope_head_dim"),
        derived("qk_rope_head_dim"),
        derived("v_head_dim", "kv_b_value_dim"),
        derived("rope_parameters", "minicpm3_rope_parameters"),
        *assumed(
            hidden_act="silu", attention_bias=False, mlp_bias=False, scale_emb=12, scale_depth=1.4, dim_model_base=256
        ),
    ),
    skips=ROPE_FACTORS,
)
