"""Bailing MoE (Ling-lite, Ling-plus), Bailing MoE V2 (Ling 2.0, Ring 2.0) and Sarvam MoE.

Source: llama.cpp 0c1e57098 conversion/bailingmoe.py, src/models/bailingmoe.cpp, bailingmoe2.cpp; vLLM 0.32.0
model_executor/models/bailing_moe.py, sarvam.py. transformers has no config class of theirs (the repositories bring
code): the model type is Llama's, whose config class keeps any further key, and vLLM chooses the class by
`architectures`.
"""

from __future__ import annotations

from ggufmap.archs.base import (
    Architecture,
    ConfigRow,
    Rule,
    Skip,
    Variant,
    assumed,
    block,
    derived,
    header,
    only,
    top,
    weights,
)
from ggufmap.archs.blocks import (
    COMMON_CONFIG,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    PRE_NORMS,
    ROPE_FREQS,
    SHARED_EXPERTS,
)

_DECODER: tuple[Rule, ...] = (
    top("token_embd.weight", "model.word_embeddings.weight"),
    top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
    *FINAL_NORM,
)
_BLOCK: tuple[Rule, ...] = (
    *PRE_NORMS,
    block("attn_output.weight", "attention.dense.weight"),
    *only(GATED_MLP, "dense"),
    *only(EXPERTS, "moe"),
    *only(SHARED_EXPERTS, "moe", "has:expert_shared_count"),
)
_QKV = "model.layers.{bid}.attention.query_key_value.weight"
_PERMUTED_QKV = Rule(
    ("blk.{bid}.attn_q.weight", "blk.{bid}.attn_k.weight", "blk.{bid}.attn_v.weight"),
    (_QKV,),
    "join_rope_rows:attention.head_count,attention.head_count_kv",
)

_CONFIG: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    derived("rope_parameters"),
    header("num_experts", "expert_count"),
    header("num_experts_per_tok", "expert_used_count"),
    header("num_shared_experts", "expert_shared_count", fallback=0),
    header("moe_intermediate_size", "expert_feed_forward_length"),
    header("first_k_dense_replace", "leading_dense_block_count", fallback=0),
    derived("norm_topk_prob"),
    # The converter has normalised the head's columns where norm_head says so.
    *assumed(hidden_act="silu", use_bias=False, use_qkv_bias=False, use_rmsnorm=True, norm_head=False),
    *assumed(embedding_dropout=0.0, output_dropout=0.0),
)

BAILING_MOE = Architecture(
    names=("bailingmoe",),
    model_type="llama",
    model_class="BailingMoeForCausalLM",
    rules=(*_DECODER, *_BLOCK, _PERMUTED_QKV),
    config=(*_CONFIG, *assumed(use_qk_norm=False)),
    skips=ROPE_FREQS,
)

_NO_DRAFT_CLASS = Skip("blk.{bid}.*", "the draft's block: vLLM has no draft class for this family", ("draft",))

BAILING_MOE2 = Architecture(
    names=("bailingmoe2",),
    model_type="llama",
    model_class="BailingMoeV2ForCausalLM",
    rules=(
        *_DECODER,
        *only(_BLOCK, "trunk"),
        *only((Rule(("blk.{bid}.attn_qkv.weight",), (_QKV,)),), "trunk"),
        *only(
            weights((("attn_q_norm", "attention.query_layernorm"), ("attn_k_norm", "attention.key_layernorm"))), "trunk"
        ),
        *only((block("exp_probs_b.bias", "mlp.gate.expert_bias"),), "trunk", "moe"),
    ),
    config=(
        *_CONFIG,
        derived("partial_rotary_factor"),
        derived("moe_shared_expert_intermediate_size", "single_shared_expert_size"),
        header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("score_function", "scoring_func"),
        derived("n_group"),
        derived("topk_group"),
        derived("moe_router_enable_expert_bias", "router_bias"),
        *assumed(use_qk_norm=True, router_dtype="fp32"),
    ),
    skips=(*ROPE_FREQS, _NO_DRAFT_CLASS),
    # Sarvam MoE: the same, with all of each head rotated; the converter has moved the router's bias to a mean of zero,
    # which changes no choice.
    variants=(Variant("sarvam_tokenizer", "llama", "SarvamMoEForCausalLM"),),
)
