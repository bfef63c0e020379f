"""DBRX, Cohere 2 MoE: families with experts that stand alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.conformance import HIDDEN, Case, Tensors, values
from support.tiny_shapes import below, norms

_EXPERTS, _WIDTH = 6, 256


def _without_types(config: dict[str, Any]) -> dict[str, Any]:
    """As published: transformers 5 writes an empty model type into the nested parts."""
    nested = {key: dict(config[key]) for key in ("attn_config", "ffn_config")}
    for part in nested.values():
        part.pop("model_type")
    return {**config, **nested}


_DBRX = Case(
    "dbrx",
    "DbrxForCausalLM",
    {
        "vocab_size": 512,
        "d_model": HIDDEN,
        "n_heads": 8,
        "n_layers": 3,
        "max_seq_len": 512,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 500000.0},
        "ffn_config": {"ffn_hidden_size": _WIDTH, "moe_num_experts": _EXPERTS, "moe_top_k": 3},
    },
    base=False,
    pre="dbrx",
    config_json=_without_types,
    ignore={
        "num_key_value_heads": "the config class copies it from attn_config",
        "rope_parameters": "a default of the config class; the base that is used is in attn_config",
    },
    not_traced="vLLM 0.32's class loads no checkpoint: KeyError 'blocks.0.ffn.experts.w13_weight' (now a level lower)",
)

_COHERE2_MOE = Case(
    "cohere2_moe",
    "Cohere2MoeForCausalLM",
    {
        "rms_norm_eps": ...,
        "layer_norm_eps": 3e-5,
        "num_hidden_layers": 5,
        "head_dim": 64,
        "intermediate_size": _WIDTH,
        "prefix_dense_intermediate_size": 512,
        "logit_scale": 0.125,
        "sliding_window": 16,
        "sliding_window_pattern": 4,
        "first_k_dense_replace": 1,
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 3,
        "num_shared_experts": 2,
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
    },
    pre="cohere2moe",
    ignore={"sliding_window_pattern": "layer_types says the same"},
)

_LAGUNA = Case(
    "laguna",
    "LagunaForCausalLM",
    {
        "num_hidden_layers": 5,
        "head_dim": 64,
        "num_attention_heads_per_layer": [8, 12, 12, 12, 8],
        "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
        "sliding_window": 16,
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": _WIDTH,
        "shared_expert_intermediate_size": 512,
        "moe_routed_scaling_factor": 2.5,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.0,
                "beta_fast": 64.0,
                "beta_slow": 1.0,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    },
    pre="laguna",
    not_traced="vLLM 0.32 drops the router's bias of every Laguna: its RoutedExperts.load_weights takes matrices only",
)


def _hy3_mtp(tensors: Tensors, config: Any) -> Tensors:
    """With one MTP block: a decoder block with experts, the projection, three norms."""
    last, first, hidden = config.num_hidden_layers - 1, config.num_hidden_layers, config.hidden_size
    shapes = {
        name.replace(f".{last}.", f".{first}.", 1): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith(f"model.layers.{last}.")
    }
    shapes |= below(f"model.layers.{first}", norms(hidden, "enorm", "hnorm", "final_layernorm"))
    shapes[f"model.layers.{first}.eh_proj.weight"] = (hidden, 2 * hidden)
    return tensors | {name: values(f"mtp/{name}", shape) for name, shape in shapes.items()}


def _hy3_config(config: dict[str, Any]) -> dict[str, Any]:
    """With the keys of the published config that vLLM's class reads and transformers' does not have."""
    extra = {"expert_hidden_dim": config["moe_intermediate_size"], "first_k_dense_replace": 1}
    return {**config, **extra, "route_norm": True, "qk_norm": True, "num_nextn_predict_layers": 1}


CASES = (
    Case(
        "hy_v3",
        "HYV3ForCausalLM",
        {
            "head_dim": 64,
            "num_experts": _EXPERTS,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "moe_intermediate_size": _WIDTH,
            "router_scaling_factor": 2.5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        },
        publish=_hy3_mtp,
        config_json=_hy3_config,
        pre="hunyuan",
    ),
    _LAGUNA,
    replace(
        _LAGUNA,
        name="laguna_full",
        config={
            **_LAGUNA.config,
            "num_attention_heads_per_layer": ...,
            "layer_types": ["full_attention"] * 5,
            "sliding_window": 0,
            "gating": "per-element",
        },
        note="as Laguna M.1: no sliding layers, a gate per value",
    ),
    _DBRX,
    _COHERE2_MOE,
    replace(
        _COHERE2_MOE,
        name="cohere2_moe_rms",
        config={
            **_COHERE2_MOE.config,
            "layer_norm_eps": ...,
            "rms_norm_eps": 3e-5,
            "num_shared_experts": 0,
            "expert_selection_fn": "softmax",
        },
    ),
)
