"""State-space and hybrid families: Mamba, FalconMamba, Mamba 2 and those that mix them with attention."""

from __future__ import annotations

from typing import Any

from support.conformance import BASE, Case, Tensors, values

_PLAIN: dict[str, Any] = {
    "vocab_size": BASE["vocab_size"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 2e-5,
}
_TRAINING = dict.fromkeys(
    (
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "time_step_scale",
        "time_step_init_scheme",
        "rescale_prenorm_residual",
    ),
    "says how weights were initialised",
)
_LIMITS = {"time_step_limit": "the default everywhere; vLLM does not read it"}
_RANK = {"time_step_rank": "of Mamba 1; nothing reads it in Mamba 2"}
_KERNELS = {
    "use_mambapy": "which kernel transformers trains with",
    "use_associative_scan": "as use_mambapy",
    "use_mamba_kernels": "as use_mambapy",
}
_H1 = {
    **_LIMITS,
    "mamba_expand": "vLLM reads it only where there is no mamba_d_ssm",
    "num_logits_to_keep": "a memory option of transformers",
}

_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
_NO_SCAN = "vLLM's CPU build has no kernel for Mamba 1: '_C' object has no attribute 'selective_scan_fwd'"


def _lfm2_hub(config: dict[str, Any]) -> dict[str, Any]:
    """With two keys that Liquid's config.json has, vLLM's class reads and transformers 5 forgets."""
    return {**config, "conv_dim": config["hidden_size"], "block_dim": config["hidden_size"]}


_LFM2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "norm_eps": 2e-5,
    "rms_norm_eps": ...,
    "tie_word_embeddings": True,
}
_FALCON_H1: dict[str, Any] = {
    "num_hidden_layers": 2,
    "head_dim": 64,
    "mamba_d_ssm": 512,
    "mamba_n_heads": 16,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 32,
    "mamba_norm_before_gate": False,
}
# Powers of two, so that a product has the same digits; no two alike, so that none can stand in for another.
_FACTORS: dict[str, Any] = {
    "attention_in_multiplier": 0.5,
    "attention_out_multiplier": 2.0,
    "embedding_multiplier": 4.0,
    "key_multiplier": 0.25,
    "lm_head_multiplier": 0.125,
    "mlp_multipliers": [8.0, 0.0625],
    "ssm_in_multiplier": 2.0,
    "ssm_multipliers": [0.5, 4.0, 0.25, 2.0, 0.125],
    "ssm_out_multiplier": 0.25,
}
_FOLDED = dict.fromkeys(_FACTORS, "multiplied into the weights by the converter; no header key")


def _multiplied(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The model with its factors in the weights, from transformers' and vLLM's forward passes."""
    import torch

    inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sections = torch.tensor([inner, inner, state, state, config["mamba_n_heads"]])
    rows = torch.tensor(config["ssm_multipliers"]).repeat_interleave(sections) * config["ssm_in_multiplier"]
    attention = config["attention_in_multiplier"]
    factors: dict[str, Any] = {
        "embed_tokens": config["embedding_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "q_proj": attention,
        "k_proj": attention * config["key_multiplier"],
        "v_proj": attention,
        "o_proj": config["attention_out_multiplier"],
        "gate_proj": config["mlp_multipliers"][0],
        "down_proj": config["mlp_multipliers"][1],
        "in_proj": rows[:, None],
        "out_proj": config["ssm_out_multiplier"],
    }
    return {name: tensor.float() * factors.get(name.split(".")[-2], 1.0) for name, tensor in tensors.items()}


_JAMBA: dict[str, Any] = {
    **_EXPERTS,
    "num_hidden_layers": 5,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "intermediate_size": 256,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_dt_rank": 24,
}

_NEMOTRON_H: dict[str, Any] = {
    "num_hidden_layers": ...,
    "rms_norm_eps": ...,
    "layer_norm_epsilon": 2e-5,
    "head_dim": 64,
    "num_attention_heads": 4,
    "mamba_num_heads": 16,
    "mamba_head_dim": 32,
    "ssm_state_size": 32,
    "n_groups": 2,
    "expand": 2,
}
_NEMOTRON_H_MOE: dict[str, Any] = {
    **_NEMOTRON_H,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 256,
    "moe_shared_expert_intermediate_size": 512,
    "routed_scaling_factor": 2.5,
    "intermediate_size": 256,
}
_PATTERN = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
_MOE_KEYS = ("moe", "routed", "expert", "topk", "n_group", "nextn", "mtp")


_NO_UNGATED = (
    "vLLM's CPU build refuses experts without a gate: is_act_and_mul=False is supported only for CUDA, XPU and ROCm"
)


def _hub(config: dict[str, Any]) -> dict[str, Any]:
    """As NVIDIA's own config.json: a pattern of letters, and the experts' keys only where there are experts."""
    pattern = "".join(_PATTERN[kind] for kind in config.pop("layers_block_type"))
    config["num_hidden_layers"] = len(pattern)
    config["hybrid_override_pattern"] = pattern
    if "E" not in pattern:
        config = {key: v for key, v in config.items() if key == "n_groups" or not any(x in key for x in _MOE_KEYS)}
    config.pop("mtp_layers_block_type", None)
    if config.get("num_nextn_predict_layers"):
        config["mtp_hybrid_override_pattern"] = "*E"
    return config


def _with_mtp(tensors: Tensors, config: Any) -> Tensors:
    """The MTP block of NVIDIA-Nemotron-3-Super: attention as layer 0, experts as layer 1."""
    pattern = config.hybrid_override_pattern
    last = {0: pattern.rindex("*"), 1: pattern.rindex("E")}
    shapes = {"0.eh_proj": (256, 512), "0.enorm": (256,), "0.hnorm": (256,), "1.final_layernorm": (256,)}
    extra = {f"mtp.layers.{name}.weight": values(f"mtp/{name}.weight", shape) for name, shape in shapes.items()}
    for layer, bid in last.items():
        for name, tensor in tensors.items():
            if name.startswith(f"backbone.layers.{bid}."):
                new = name.replace(f"backbone.layers.{bid}.", f"mtp.layers.{layer}.")
                extra[new] = values(f"mtp/{new}", tuple(tensor.shape))
    return {**tensors, **extra}


_NEMOTRON_IGNORED: dict[str, str] = {
    **_TRAINING,
    **_LIMITS,
    "max_position_embeddings": "the converter writes 2**20 for every hybrid",
    "expand": "the inner size is heads times head size",
    "num_logits_to_keep": "a memory option of transformers",
    "residual_in_fp32": "vLLM does not read it",
    "use_mamba_kernels": "which kernel transformers runs",
    "mamba_ssm_cache_dtype": "how the state is kept is for the one who serves to choose",
    "hidden_dropout": "training",
    "sliding_window": "null in every model",
    "moe_shared_expert_overlap": "how a kernel is scheduled",
}

_KIMI: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 80,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_attn_config": {
        "full_attn_layers": [3],
        "kda_layers": [1, 2, 4],
        "head_dim": 32,
        "num_heads": 8,
        "short_conv_kernel_size": 4,
    },
}


_KIMI_SAME = (
    *("architectures", "model_type", "dtype", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("hidden_act", "hidden_size", "intermediate_size", "moe_intermediate_size", "rms_norm_eps", "vocab_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings", "eos_token_id"),
)


def _kimi_hub(config: dict[str, Any]) -> dict[str, Any]:
    """Moonshot's own keys, as the converter and vLLM's config class read them."""
    return {
        **{key: config[key] for key in _KIMI_SAME},
        "linear_attn_config": _KIMI["linear_attn_config"],
        "first_k_dense_replace": 1,
        "head_dim": 32,
        "mla_use_nope": True,
        "model_max_length": 512,
        "moe_layer_freq": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_expert_group": 1,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "q_lora_rank": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        "routed_scaling_factor": 2.446,
        "topk_group": 1,
        "use_grouped_topk": True,
    }


def _kimi_dense(tensors: Tensors, _: Any) -> Tensors:
    """transformers gives the dense block's MLP the experts' prefix when it saves; Moonshot's repository does not."""
    old, new = "layers.0.block_sparse_moe.", "layers.0.mlp."
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


_FULL_RANK = (
    "vLLM 0.32.0's class is Kimi K3's: on a CPU it fails with \"No module named 'cutlass'\", and elsewhere it refuses "
    'Kimi Linear\'s low-rank gate ("KimiK3DeltaAttention requires a full-rank gate")'
)

CASES = (
    Case(
        "mamba2",
        "Mamba2ForCausalLM",
        {**_PLAIN, "num_heads": 16, "head_dim": 32, "state_size": 32, "n_groups": 2, "expand": 2},
        base=False,
        ignore={**_TRAINING, **_LIMITS, **_RANK},
    ),
    Case(
        "mamba",
        "MambaForCausalLM",
        {**_PLAIN, "state_size": 8, "time_step_rank": 24, "tie_word_embeddings": True},
        base=False,
        ignore={**_TRAINING, **_KERNELS},
        not_run=_NO_SCAN,
    ),
    Case(
        "falcon_mamba",
        "FalconMambaForCausalLM",
        {**_PLAIN, "state_size": 8, "time_step_rank": 24, "tie_word_embeddings": False},
        base=False,
        ignore={**_TRAINING, **_KERNELS},
        not_run=_NO_SCAN,
    ),
    Case("lfm2", "Lfm2ForCausalLM", {**_LFM2, "block_auto_adjust_ff_dim": False}, config_json=_lfm2_hub),
    Case(
        "lfm2_adjusted",
        "Lfm2ForCausalLM",
        {**_LFM2, "intermediate_size": 700, "block_ffn_dim_multiplier": 1.25, "block_multiple_of": 64},
        config_json=_lfm2_hub,
        ignore=dict.fromkeys(
            ("intermediate_size", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"),
            "the header has the size that the adjustment gives",
        ),
    ),
    Case(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        {**_LFM2, **_EXPERTS, "num_dense_layers": 2, "moe_intermediate_size": 256},
    ),
    Case(
        "falcon_h1",
        "FalconH1ForCausalLM",
        {**_FALCON_H1, "mamba_rms_norm": True, **_FACTORS},
        stored=_multiplied,
        ignore={**_H1, **_FOLDED},
    ),
    Case("falcon_h1_unnormed", "FalconH1ForCausalLM", {**_FALCON_H1, "mamba_rms_norm": False}, ignore=_H1),
    Case("jamba", "JambaForCausalLM", _JAMBA, tokenizer="llama", ignore=_KERNELS, not_run=_NO_SCAN),
    Case(
        "nemotron_h",
        "NemotronHForCausalLM",
        {**_NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]},
        config_json=_hub,
        raw_config=True,
        ignore=_NEMOTRON_IGNORED,
    ),
    Case(
        "nemotron_h_moe",
        "NemotronHForCausalLM",
        {**_NEMOTRON_H_MOE, "tie_word_embeddings": False},
        config_json=_hub,
        raw_config=True,
        not_traced=_NO_UNGATED,
        not_run=_NO_UNGATED,
        ignore=_NEMOTRON_IGNORED,
    ),
    Case(
        "nemotron_h_mtp",
        "NemotronHForCausalLM",
        {**_NEMOTRON_H_MOE, "moe_latent_size": 128, "num_nextn_predict_layers": 1},
        publish=_with_mtp,
        config_json=_hub,
        raw_config=True,
        not_traced=_NO_UNGATED,
        not_run=_NO_UNGATED,
        ignore=_NEMOTRON_IGNORED,
    ),
    Case(
        "kimi_linear",
        "KimiLinearForCausalLM",
        _KIMI,
        pre="kimi-k2",
        publish=_kimi_dense,
        config_json=_kimi_hub,
        raw_config=True,
        not_traced=_FULL_RANK,
        not_run=_FULL_RANK,
    ),
)
