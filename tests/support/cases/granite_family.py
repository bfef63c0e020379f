"""Granite: dense, mixture of experts, shared expert, and the Mamba 2 hybrids."""

from __future__ import annotations

from typing import Any

from support.conformance import Case, Tensors

_SCALES: dict[str, Any] = {
    "attention_multiplier": 0.0625,
    "embedding_multiplier": 0.75,
    "residual_multiplier": 1.25,
    "logits_scaling": 3.0,
}
_MOE: dict[str, Any] = {**_SCALES, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 256}
_HYBRID: dict[str, Any] = {
    **_SCALES,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "position_embedding_type": "nope",
    "mamba_n_heads": 16,
    "mamba_d_head": 32,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "shared_intermediate_size": 512,
}
_IGNORED = {
    "max_position_embeddings": "the converter writes 2**20 for every hybrid",
    "time_step_limit": "the default everywhere; vLLM does not read it",
}


def _published(config: dict[str, Any]) -> dict[str, Any]:
    """As in real repositories, and as the converter reads them: `mamba` and `attention`."""
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    return {**config, "layer_types": [names[kind] for kind in config["layer_types"]]}


def _split_shared(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The shared MLP under the names of GraniteForCausalLM."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("shared_mlp.input_linear.weight"):
            gate, up = tensor.split(config["shared_intermediate_size"])
            made[name.replace("shared_mlp.input_linear", "mlp.gate_proj")] = gate
            made[name.replace("shared_mlp.input_linear", "mlp.up_proj")] = up
        else:
            made[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = tensor
    return made


_SWA: dict[str, Any] = {
    **_SCALES,
    "num_hidden_layers": 4,
    "sliding_window": 16,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
}
_UNMIXED = "a hybrid without Mamba blocks is written as granite: the same computation"

CASES = (
    Case("granite", "GraniteForCausalLM", {**_SCALES, "tie_word_embeddings": True}),
    Case("granite_biases", "GraniteForCausalLM", {**_SCALES, "attention_bias": True, "mlp_bias": True}),
    Case("granitemoe", "GraniteMoeForCausalLM", _MOE),
    Case("granitemoeshared", "GraniteMoeSharedForCausalLM", {**_MOE, "shared_intermediate_size": 512}),
    Case(
        "granitehybrid",
        "GraniteMoeHybridForCausalLM",
        {**_HYBRID, **_MOE, "tie_word_embeddings": True},
        config_json=_published,
        ignore=_IGNORED,
    ),
    Case(
        "granitehybrid_dense",
        "GraniteMoeHybridForCausalLM",
        {**_HYBRID, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_conv_bias": False},
        config_json=_published,
        ignore=_IGNORED,
    ),
    Case(
        "granitehybrid_unmixed",
        "GraniteMoeHybridForCausalLM",
        {
            **_HYBRID,
            "layer_types": ["full_attention"] * 4,
            "position_embedding_type": "rope",
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
        },
        config_json=_published,
        stored=_split_shared,
        ignore={
            **_IGNORED,
            **dict.fromkeys(
                (
                    *("architectures", "model_type", "layer_types", "position_embedding_type", "num_local_experts"),
                    *("num_experts_per_tok", "shared_intermediate_size", "mamba_n_heads", "mamba_n_groups"),
                    *("mamba_d_state", "mamba_d_head", "mamba_d_conv", "mamba_expand", "mamba_chunk_size"),
                    *("mamba_conv_bias", "mamba_proj_bias"),
                ),
                _UNMIXED,
            ),
        },
    ),
    Case("granite_swa", "GraniteSWAForCausalLM", {**_SWA, "tie_word_embeddings": True}),
    Case("granitemoe_swa", "GraniteMoeSWAForCausalLM", {**_SWA, **_MOE, "shared_intermediate_size": 512}),
)
