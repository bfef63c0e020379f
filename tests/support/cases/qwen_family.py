"""Qwen's families beyond the dense ones: experts, and the hybrids with linear attention and an MTP block."""

from __future__ import annotations

from typing import Any

from support.conformance import HIDDEN, Case, Tensors, values

_FULL = "the GGUF has no such key; every layer is a full one"

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 256}
_LINEAR = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_conv_kernel_dim": 4,
}
# 8 frequencies in three sections, as the real 32 are in 11, 11 and 10.
_QWEN35 = {
    "mtp_num_hidden_layers": 1,
    "mamba_ssm_dtype": "float32",
    "attn_output_gate": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 20_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
_NO_SCAN = "chunk_gated_delta_rule_cpu: expect head_dim to be equal to head_dim_v"
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 20_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}


def with_mtp(tensors: Tensors, config: Any) -> Tensors:
    """`tensors` with one MTP block under `mtp.`, as Qwen3-Next's and Qwen3.5's repositories have it."""
    last = max(i for i, kind in enumerate(config.layer_types) if kind == "full_attention")
    old, new = f"model.layers.{last}.", "mtp.layers.0."
    extra = {
        name.replace(old, new): values(f"mtp/{name.replace(old, new)}", tuple(tensor.shape))
        for name, tensor in tensors.items()
        if name.startswith(old)
    }
    shapes = {
        "fc": (HIDDEN, 2 * HIDDEN),
        "norm": (HIDDEN,),
        "pre_fc_norm_embedding": (HIDDEN,),
        "pre_fc_norm_hidden": (HIDDEN,),
    }
    extra.update((f"mtp.{name}.weight", values(f"mtp/{name}.weight", shape)) for name, shape in shapes.items())
    return {**tensors, **extra}


def with_num_experts(config: dict[str, Any]) -> dict[str, Any]:
    """Real repositories say `num_experts`; transformers 5 writes its own name for it."""
    return {**{key: x for key, x in config.items() if key != "num_local_experts"}, "num_experts": 6}


_RUN: dict[str, Any] = {"run_dtype": "bfloat16", "no_torchvision": True}
CASES = (
    Case(
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        {**_EXPERTS, "shared_expert_intermediate_size": 512},
        ignore={"max_window_layers": _FULL, "sliding_window": "means nothing while use_sliding_window is false"},
    ),
    Case(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        {**_EXPERTS, "head_dim": 64, "norm_topk_prob": True, "rope_parameters": _YARN},
        config_json=with_num_experts,
    ),
    Case(
        "qwen3next",
        "Qwen3NextForCausalLM",
        {**_EXPERTS, **_LINEAR, "linear_key_head_dim": 64, "shared_expert_intermediate_size": 512},
        run_dtype="bfloat16",  # "CPU GDN attention requires BF16."
        publish=with_mtp,
    ),
    Case(
        "qwen3next_fused",
        "Qwen3NextForCausalLM",
        {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 512},
        not_run=_NO_SCAN,
        arguments=("--no-mtp", "--fuse-gate-up-exps"),
        note="converted with --fuse-gate-up-exps, without a draft",
    ),
    Case(
        "qwen35",
        "Qwen3_5ForCausalLM",
        {**_LINEAR, **_QWEN35, "tie_word_embeddings": True},
        publish=with_mtp,
        not_run=_NO_SCAN,
    ),
    Case(
        "qwen35_equal_heads",
        "Qwen3_5ForCausalLM",
        {**_LINEAR, **_QWEN35, "linear_key_head_dim": 64, "linear_num_value_heads": 2},
        publish=with_mtp,
        **_RUN,
        note="as many value heads as key heads: nothing is reordered",
    ),
    Case(
        "qwen35moe",
        "Qwen3_5MoeForCausalLM",
        {**_EXPERTS, **_LINEAR, **_QWEN35, "linear_key_head_dim": 64, "shared_expert_intermediate_size": 512},
        publish=with_mtp,
        **_RUN,
    ),
)
