"""Qwen3-Next, Qwen3.5 and Qwen3.5-MoE (text): gated delta nets with full attention in between, and an MTP block.

Source: llama.cpp 0c1e57098 conversion/qwen.py (_QwenMtpMixin, Qwen3NextModel, _LinearAttentionVReorderBase),
src/models/qwen3next.cpp, qwen35.cpp; vLLM 0.32.0 model_executor/models/qwen3_next.py, qwen3_5.py, qwen3_next_mtp.py.
"""

from __future__ import annotations

from dataclasses import replace

from ggufmap.archs.base import (
    Architecture,
    ConfigRow,
    Rule,
    assumed,
    block,
    derived,
    header,
    only,
    top,
    weights,
    without,
)
from ggufmap.archs.blocks import ATTENTION, COMMON_CONFIG, EMBEDDING, EXPERTS, GATED_MLP, ROPE_FREQS
from ggufmap.archs.qwen import EXPERTS_CONFIG, SHARED_EXPERT

_MINUS_ONE = "add:-1"
_KEY_HEADS = "ssm.group_count"
_VALUE_HEADS = f"{_KEY_HEADS},ssm.time_step_rank"
_VALUE_ROWS = f"{_VALUE_HEADS},ssm.inner_size"

_TOP: tuple[Rule, ...] = (*EMBEDDING, top("output_norm.weight", "model.norm.weight", _MINUS_ONE))
_NORMS = weights((("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")), _MINUS_ONE)
_ATTENTION = ATTENTION + weights((("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")), _MINUS_ONE)
_MOE = EXPERTS + SHARED_EXPERT

_QKVZ = "model.layers.{bid}.linear_attn.in_proj_qkvz.weight"

_GROUPED_NET: tuple[Rule, ...] = (
    Rule(("blk.{bid}.attn_qkv.weight", "blk.{bid}.attn_gate.weight"), (_QKVZ,), f"group_rows:{_KEY_HEADS}"),
    Rule(("blk.{bid}.ssm_in.weight",), (_QKVZ,), optional="files from before the split of in_proj_qkvz have it"),
    block("ssm_ba.weight", "linear_attn.in_proj_ba.weight"),
    block("ssm_conv1d.weight", "linear_attn.conv1d.weight", "conv_channels"),
    block("ssm_a", "linear_attn.A_log", "a_log"),
    block("ssm_dt.bias", "linear_attn.dt_bias"),
    block("ssm_norm.weight", "linear_attn.norm.weight"),
    block("ssm_out.weight", "linear_attn.out_proj.weight"),
)
"""Qwen3-Next's gated delta net: the checkpoint has query, key, value and gate of a head next to each other."""

_TILED_NET: tuple[Rule, ...] = (
    block("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", f"tiled_tail:{_VALUE_ROWS}"),
    block("attn_gate.weight", "linear_attn.in_proj_z.weight", f"tiled_rows:{_VALUE_HEADS}"),
    block("ssm_alpha.weight", "linear_attn.in_proj_a.weight", f"tiled_rows:{_VALUE_HEADS}"),
    block("ssm_beta.weight", "linear_attn.in_proj_b.weight", f"tiled_rows:{_VALUE_HEADS}"),
    block("ssm_conv1d.weight", "linear_attn.conv1d.weight", f"tiled_tail_conv:{_VALUE_ROWS}"),
    block("ssm_a", "linear_attn.A_log", f"tiled_a_log:{_VALUE_HEADS}"),
    block("ssm_dt.bias", "linear_attn.dt_bias", f"tiled_rows:{_VALUE_HEADS}"),
    block("ssm_norm.weight", "linear_attn.norm.weight"),
    block("ssm_out.weight", "linear_attn.out_proj.weight", f"tiled_columns:{_VALUE_HEADS}"),
)
"""Qwen3.5's: the converter puts the value heads into ggml's tiled order wherever they appear."""

_MTP_ONLY: tuple[Rule, ...] = (
    Rule(("blk.{bid}.nextn.eh_proj.weight",), ("mtp.fc.weight",)),
    Rule(("blk.{bid}.nextn.enorm.weight",), ("mtp.pre_fc_norm_embedding.weight",), _MINUS_ONE),
    Rule(("blk.{bid}.nextn.hnorm.weight",), ("mtp.pre_fc_norm_hidden.weight",), _MINUS_ONE),
    Rule(("blk.{bid}.nextn.shared_head_norm.weight",), ("mtp.norm.weight",), _MINUS_ONE),
)


def _in_mtp(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rows of a decoder block as the MTP block has them."""

    def moved(name: str) -> str:
        return name.replace("model.layers.{bid}.", "mtp.layers.{nextn}.")

    return tuple(replace(rule, checkpoint=tuple(map(moved, rule.checkpoint))) for rule in rules)


def _rules(net: tuple[Rule, ...], mlp: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return (
        _TOP
        + only(_NORMS + mlp, "trunk")
        + only(_ATTENTION, "trunk", "softmax_attention")
        + only(net, "trunk", "linear_attention")
        + only(_in_mtp(_NORMS + _ATTENTION + mlp) + _MTP_ONLY, "draft")
    )


_CONFIG: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    derived("layer_types", "full_or_linear_layer_types"),
    derived("attention_bias", "qkv_bias"),
    header("linear_conv_kernel_dim", "ssm.conv_kernel"),
    header("linear_key_head_dim", "ssm.state_size"),
    header("linear_num_key_heads", "ssm.group_count"),
    header("linear_num_value_heads", "ssm.time_step_rank"),
    derived("linear_value_head_dim"),
    derived("partial_rotary_factor"),
    *assumed(hidden_act="silu"),
)
_MOE_CONFIG: tuple[ConfigRow, ...] = (
    *without(EXPERTS_CONFIG, "decoder_sparse_step", "mlp_only_layers"),
    derived("shared_expert_intermediate_size", "shared_expert_size"),
    # llama.cpp renormalises the chosen experts' weights (build_moe_ffn's norm_w).
    *assumed(norm_topk_prob=True),
)
# vLLM reads the first from qwen3_5 configs, which all published ones have; the second counts the draft's blocks.
_QWEN35_CONFIG: tuple[ConfigRow, ...] = (
    *_CONFIG,
    derived("rope_parameters", "mrope_parameters"),
    derived("mtp_num_hidden_layers", "num_nextn_predict_layers"),
    *assumed(mamba_ssm_dtype="float32", attn_output_gate=True),
)

QWEN3_NEXT = Architecture(
    names=("qwen3next",),
    model_type="qwen3_next",
    model_class="Qwen3NextForCausalLM",
    rules=_rules(_GROUPED_NET, _MOE),
    config=(
        *_CONFIG,
        *_MOE_CONFIG,
        derived("rope_parameters"),
        derived("num_nextn_predict_layers"),
        *assumed(decoder_sparse_step=1, mlp_only_layers=[]),
    ),
    skips=ROPE_FREQS,
    full_attention_interval=4,
)

QWEN35 = Architecture(
    names=("qwen35",),
    model_type="qwen3_5_text",
    model_class="Qwen3_5ForCausalLM",
    rules=_rules(_TILED_NET, GATED_MLP),
    config=_QWEN35_CONFIG,
    skips=ROPE_FREQS,
    full_attention_interval=4,
)

QWEN35_MOE = Architecture(
    names=("qwen35moe",),
    model_type="qwen3_5_moe_text",
    model_class="Qwen3_5MoeForCausalLM",
    rules=_rules(_TILED_NET, _MOE),
    config=(*_QWEN35_CONFIG, *_MOE_CONFIG),
    skips=ROPE_FREQS,
    full_attention_interval=4,
)
