"""Shared blocks of rows, composed by `+` in the family files."""

from __future__ import annotations

from ggufmap.archs.base import ConfigRow, Rule, Skip, assumed, biases, block, derived, header, only, top, weights

EMBEDDING: tuple[Rule, ...] = (
    top("token_embd.weight", "model.embed_tokens.weight"),
    top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
)

FINAL_NORM: tuple[Rule, ...] = (top("output_norm.weight", "model.norm.weight"),)

_QK = (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"))
_VO = (("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"))

ATTENTION: tuple[Rule, ...] = weights(_QK + _VO)
"""Separate projections, rows in checkpoint order."""

ATTENTION_BIAS: tuple[Rule, ...] = biases(_QK + _VO)

QKV_BIAS: tuple[Rule, ...] = tuple(block(f"{a}.bias", f"{b}.bias") for a, b in (*_QK, _VO[0]))
"""For families whose query, key and value projections always have one."""

ROPE_PERMUTED_ATTENTION: tuple[Rule, ...] = tuple(
    rule
    for module, heads in zip(_QK, ("attention.head_count", "attention.head_count_kv"), strict=True)
    for rule in weights((module,), f"rope_rows:{heads}") + biases((module,), f"rope_rows:{heads}")
) + (weights(_VO) + biases(_VO))
"""The converter turns each head's rows from (2, d/2) to (d/2, 2) for interleaved RoPE (conversion/llama.py)."""

QK_NORM: tuple[Rule, ...] = weights((("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")))

_GATED = (("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"))

GATED_MLP: tuple[Rule, ...] = weights(_GATED)
GATED_MLP_BIAS: tuple[Rule, ...] = biases(_GATED)

PRE_NORMS: tuple[Rule, ...] = (
    block("attn_norm.weight", "input_layernorm.weight"),
    block("ffn_norm.weight", "post_attention_layernorm.weight"),
)

_KV_B = "model.layers.{bid}.self_attn.kv_b_proj.weight"

_Q_LORA = (
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
)
_LATENT = (
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_output", "self_attn.o_proj"),
)

MLA: tuple[Rule, ...] = (
    *only(weights(_Q_LORA), "has:attention.q_lora_rank"),
    *only(weights(_QK[:1]), "lacks:attention.q_lora_rank"),
    *weights(_LATENT),
    Rule(("blk.{bid}.attn_k_b.weight", "blk.{bid}.attn_v_b.weight"), (_KV_B,), "mla_kv_b:attention.head_count"),
    Rule(("blk.{bid}.attn_kv_b.weight",), (_KV_B,), optional="files from before the split of kv_b have it"),
)
"""Multi-head latent attention. Newer converters keep kv_b as two halves, the first transposed (absorbed form)."""

_INDEXER = (
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
)

INDEXER: tuple[Rule, ...] = (
    *weights(_INDEXER),
    block("indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
)

_BLOCK = "model.layers.{bid}."


def stacked_experts(gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """The stacked routed experts, by the checkpoint's module names (with `{eid}`).

    `convert_hf_to_gguf.py --fuse-gate-up-exps` keeps gate and up of an expert together.
    """
    names = (("gate", gate), ("up", up), ("down", down))
    return (
        *(block(f"ffn_{part}_exps.weight", f"{name}.weight", "experts") for part, name in names),
        Rule(
            ("blk.{bid}.ffn_gate_up_exps.weight",),
            (f"{_BLOCK}{gate}.weight", f"{_BLOCK}{up}.weight"),
            "expert_halves",
            optional="files converted with --fuse-gate-up-exps have it",
        ),
    )


EXPERTS: tuple[Rule, ...] = weights((("ffn_gate_inp", "mlp.gate"),)) + stacked_experts(
    *(f"mlp.experts.{{eid}}.{part}_proj" for part in ("gate", "up", "down"))
)
"""The router and the stacked routed experts, cut on the outermost axis in file order."""

ROUTER_BIAS: tuple[Rule, ...] = (
    block("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", optional="this model's router has no bias"),
)

SHARED_EXPERTS: tuple[Rule, ...] = weights(
    tuple((f"ffn_{part}_shexp", f"mlp.shared_experts.{part}_proj") for part in ("gate", "up", "down"))
)

NEXTN: tuple[Rule, ...] = only(
    weights(
        (
            ("nextn.eh_proj", "eh_proj"),
            ("nextn.enorm", "enorm"),
            ("nextn.hnorm", "hnorm"),
            ("nextn.shared_head_norm", "shared_head.norm"),
        )
    )
    + weights(
        (("nextn.embed_tokens", "embed_tokens"), ("nextn.shared_head_head", "shared_head.head")),
        optional="not in the file: shared with the target",
    ),
    "draft",
)
"""What a draft block has beside its decoder block."""

ROPE_FREQS: tuple[Skip, ...] = (
    Skip("rope_freqs.weight", "RoPE frequency factors: compared with the config's scaling, not a parameter"),
)

BASE_CONFIG: tuple[ConfigRow, ...] = (
    derived("vocab_size"),
    header("hidden_size", "embedding_length"),
    header("intermediate_size", "feed_forward_length"),
    derived("num_hidden_layers"),
    header("num_attention_heads", "attention.head_count"),
    header("max_position_embeddings", "context_length"),
    header("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    derived("tie_word_embeddings"),
    derived("bos_token_id"),
    derived("eos_token_id"),
    derived("pad_token_id"),
    *assumed(attention_dropout=0.0, initializer_range=0.02, use_cache=True),
)
"""Keys that every decoder-only family with RMS norms has."""

COMMON_CONFIG: tuple[ConfigRow, ...] = (*BASE_CONFIG, derived("num_key_value_heads"), derived("head_dim"))
"""The same with grouped-query attention."""

MLA_CONFIG: tuple[ConfigRow, ...] = (
    header("q_lora_rank", "attention.q_lora_rank", nullable=True),
    header("kv_lora_rank", "attention.kv_lora_rank"),
    derived("qk_nope_head_dim"),
    derived("qk_rope_head_dim"),
    derived("v_head_dim"),
)

MOE_CONFIG: tuple[ConfigRow, ...] = (
    header("n_routed_experts", "expert_count", optional=True),
    header("n_shared_experts", "expert_shared_count", optional=True),
    header("num_experts_per_tok", "expert_used_count", optional=True),
    header("moe_intermediate_size", "expert_feed_forward_length"),
    header("first_k_dense_replace", "leading_dense_block_count", fallback=0),
    header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
    derived("norm_topk_prob"),
    derived("scoring_func"),
    derived("n_group"),
    derived("topk_group"),
)
"""DeepSeek's style of experts: routed and shared ones, the first blocks dense."""

DRAFT_CONFIG: tuple[ConfigRow, ...] = (derived("num_nextn_predict_layers"),)
