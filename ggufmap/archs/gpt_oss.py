"""GPT-OSS 20B and 120B.

Source: llama.cpp 0c1e57098 conversion/gpt_oss.py, src/models/openai-moe.cpp; vLLM 0.32.0
model_executor/models/gpt_oss.py.
The checkpoint is the one in bfloat16, whose experts have gate and up columns in turn; MXFP4 tensors are decoded to it.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, biases, block, derived, header, weights
from ggufmap.archs.blocks import ATTENTION, ATTENTION_BIAS, COMMON_CONFIG, EMBEDDING, FINAL_NORM

_EXPERTS = "model.layers.{bid}.mlp.experts."


def _gate_up(suffix: str, checkpoint: str, transform: str) -> Rule:
    names = (f"blk.{{bid}}.ffn_gate_exps.{suffix}", f"blk.{{bid}}.ffn_up_exps.{suffix}")
    return Rule(names, (_EXPERTS + checkpoint,), transform)


GPT_OSS = Architecture(
    names=("gpt-oss",),
    model_type="gpt_oss",
    model_class="GptOssForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + ATTENTION_BIAS
    + weights((("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")))
    + weights((("ffn_gate_inp", "mlp.router"),))
    + biases((("ffn_gate_inp", "mlp.router"),))
    + (
        block("attn_sinks.weight", "self_attn.sinks"),
        _gate_up("weight", "gate_up_proj", "alternating_columns"),
        _gate_up("bias", "gate_up_proj_bias", "interleave"),
        block("ffn_down_exps.weight", "mlp.experts.down_proj", "stacked_columns"),
        block("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
    ),
    config=(
        *COMMON_CONFIG,
        header("num_local_experts", "expert_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("sliding_window", "attention.sliding_window"),
        derived("layer_types", "sliding_layer_types_2"),
        derived("rope_parameters", "untruncated_rope"),
        derived("attention_bias", "qkv_bias"),
        *assumed(hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0),
    ),
)
