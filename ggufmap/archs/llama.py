"""Llama and Mistral: one architecture string, `llama`, and one model class (the two compute the same). Mixtral is its
variant with experts. Arcee and SmolLM3 have strings of their own and are built the same way.

Source: llama.cpp 0c1e57098 conversion/llama.py, src/models/smollm3.cpp; vLLM 0.32.0 model_executor/models/llama.py,
mixtral.py, and its Transformers class for Arcee and SmolLM3.
"""

from __future__ import annotations

from ggufmap.archs.base import (
    Architecture,
    ConfigRow,
    Rule,
    Source,
    Variant,
    assumed,
    biases,
    derived,
    header,
    only,
    weights,
    without,
)
from ggufmap.archs.blocks import (
    COMMON_CONFIG,
    EMBEDDING,
    FINAL_NORM,
    GATED_MLP,
    GATED_MLP_BIAS,
    PRE_NORMS,
    ROPE_FREQS,
    ROPE_PERMUTED_ATTENTION,
    stacked_experts,
)

_UNGATED = (("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"))
UNGATED_MLP: tuple[Rule, ...] = weights(_UNGATED) + biases(_UNGATED)

_ATTENTION = EMBEDDING + ROPE_PERMUTED_ATTENTION + PRE_NORMS + FINAL_NORM
_CONFIG: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    derived("rope_parameters"),
    derived("attention_bias", "output_bias"),
    derived("mlp_bias"),
)

_MIXTRAL: tuple[Rule, ...] = only(
    weights((("ffn_gate_inp", "block_sparse_moe.gate"),))
    + stacked_experts(*(f"block_sparse_moe.experts.{{eid}}.{name}" for name in ("w1", "w3", "w2"))),
    "moe",
)

LLAMA = Architecture(
    names=("llama",),
    model_type="llama",
    model_class="LlamaForCausalLM",
    variants=(
        Variant(
            "experts",
            "mixtral",
            "MixtralForCausalLM",
            rules=_ATTENTION + _MIXTRAL,
            config=(
                *COMMON_CONFIG,
                derived("rope_parameters"),
                header("num_local_experts", "expert_count"),
                header("num_experts_per_tok", "expert_used_count"),
                *assumed(hidden_act="silu", sliding_window=None),
            ),
        ),
    ),
    rules=_ATTENTION + GATED_MLP + GATED_MLP_BIAS,
    config=(*_CONFIG, derived("qkv_bias"), *assumed(hidden_act="silu", pretraining_tp=1)),
    skips=ROPE_FREQS,
)

ARCEE = Architecture(
    names=("arcee",),
    model_type="arcee",
    model_class="ArceeForCausalLM",
    rules=_ATTENTION + UNGATED_MLP,
    config=(*without(_CONFIG, "mlp_bias"), derived("mlp_bias", "up_bias"), *assumed(hidden_act="relu2")),
    skips=ROPE_FREQS,
)

SMOLLM3 = Architecture(
    names=("smollm3",),
    model_type="smollm3",
    model_class="SmolLM3ForCausalLM",
    rules=_ATTENTION + GATED_MLP + GATED_MLP_BIAS,
    config=(
        *without(_CONFIG, "pad_token_id"),
        # Said even where the header has none: the config class's default lies beyond small vocabularies.
        ConfigRow("pad_token_id", Source.DERIVED, "pad_token_id", nullable=True),
        derived("layer_types", "full_layer_types"),
        derived("no_rope_layers", "no_rope_every_4th"),
        *assumed(hidden_act="silu", no_rope_layer_interval=4, use_sliding_window=False, sliding_window=None),
    ),
    skips=ROPE_FREQS,
)
