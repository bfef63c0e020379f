"""Jamba: Mamba with an attention block now and then, experts in every other block.

Source: llama.cpp 0c1e57098 conversion/jamba.py, src/models/jamba.cpp; vLLM 0.32.0 model_executor/models/jamba.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, block, derived, header, only, top, weights
from ggufmap.archs.blocks import ATTENTION, BASE_CONFIG, EMBEDDING
from ggufmap.archs.ssm import MAMBA_MIXER, moved

_PARTS = ("gate", "up", "down")
_MAMBA = moved(MAMBA_MIXER, ".mixer.", ".mamba.") + weights(
    tuple((f"ssm_{part}_norm", f"mamba.{part}_layernorm") for part in ("dt", "b", "c"))
)
_EXPERTS: tuple[Rule, ...] = (
    block("ffn_gate_inp.weight", "feed_forward.router.weight"),
    *(
        block(f"ffn_{part}_exps.weight", f"feed_forward.experts.{{eid}}.{part}_proj.weight", "experts")
        for part in _PARTS
    ),
)

JAMBA = Architecture(
    names=("jamba",),
    model_type="jamba",
    model_class="JambaForCausalLM",
    rules=(
        *EMBEDDING,
        top("output_norm.weight", "model.final_layernorm.weight"),
        *weights((("attn_norm", "input_layernorm"), ("ffn_norm", "pre_ff_layernorm"))),
        *only(ATTENTION, "softmax_attention"),
        *only(_MAMBA, "linear_attention"),
        *only(weights(tuple((f"ffn_{part}", f"feed_forward.{part}_proj") for part in _PARTS)), "unrouted"),
        *only(_EXPERTS, "routed"),
    ),
    config=(
        *BASE_CONFIG,
        derived("num_key_value_heads", "hybrid_kv_heads"),
        header("num_experts", "expert_count", fallback=1),
        header("num_experts_per_tok", "expert_used_count", fallback=1),
        derived("attn_layer_period", "jamba_attention_period"),
        derived("attn_layer_offset", "jamba_attention_offset"),
        derived("expert_layer_period", "jamba_expert_period"),
        derived("expert_layer_offset", "jamba_expert_offset"),
        header("mamba_d_state", "ssm.state_size"),
        header("mamba_d_conv", "ssm.conv_kernel"),
        header("mamba_dt_rank", "ssm.time_step_rank"),
        derived("mamba_expand"),
        derived("mamba_conv_bias"),
        derived("mamba_proj_bias"),
        *assumed(hidden_act="silu"),
    ),
)
