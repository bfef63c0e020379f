"""State-space and hybrid families: Mamba, FalconMamba, Mamba 2 and those that mix them with attention."""

from __future__ import annotations

from typing import Any

from support.conformance import BASE, Case, Tensors

_PLAIN: dict[str, Any] = {
    "vocab_size": BASE["vocab_size"],
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 2e-5,
}
_TRAINING = {
    key: "says how weights were initialised"
    for key in (
        "time_step_min",
        "time_step_max",
        "time_step_floor",
        "time_step_scale",
        "time_step_init_scheme",
        "rescale_prenorm_residual",
    )
}
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
_FOLDED = {key: "multiplied into the weights by the converter; no header key" for key in _FACTORS}


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
    ),
    Case(
        "falcon_mamba",
        "FalconMambaForCausalLM",
        {**_PLAIN, "state_size": 8, "time_step_rank": 24, "tie_word_embeddings": False},
        base=False,
        ignore={**_TRAINING, **_KERNELS},
    ),
    Case("lfm2", "Lfm2ForCausalLM", {**_LFM2, "block_auto_adjust_ff_dim": False}),
    Case(
        "lfm2_adjusted",
        "Lfm2ForCausalLM",
        {**_LFM2, "intermediate_size": 700, "block_ffn_dim_multiplier": 1.25, "block_multiple_of": 64},
        ignore={
            key: "the header has the size that the adjustment gives"
            for key in (
                "intermediate_size",
                "block_auto_adjust_ff_dim",
                "block_ffn_dim_multiplier",
                "block_multiple_of",
            )
        },
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
    Case("jamba", "JambaForCausalLM", _JAMBA, tokenizer="llama", ignore=_KERNELS),
)
