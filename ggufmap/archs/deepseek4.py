"""DeepSeek V4: one latent head of keys and values, compressed at three rates, hyper-connections, hashed routing.

The checkpoint is the one in plain numbers, with the repository's own tensor names; MXFP4 experts are decoded to it.
The converter leaves the MTP blocks out.

Source: llama.cpp 0c1e57098 conversion/deepseek.py; vLLM 0.32.0 vllm/models/deepseek_v4,
transformers_utils/configs/deepseek_v4.py.
"""

from __future__ import annotations

from ggufmap.archs.base import (
    Architecture,
    Rule,
    Skip,
    assumed,
    block,
    derived,
    header,
    only,
    renamed,
    top,
    weights,
    without,
)
from ggufmap.archs.blocks import BASE_CONFIG, ROPE_FREQS
from ggufmap.archs.deepseek import DEEPSEEK2, INDEXER_CONFIG

_PARTS = ("fn", "base", "scale")
_OUTSIDE: tuple[Rule, ...] = (
    top("token_embd.weight", "embed.weight"),
    top("output_norm.weight", "norm.weight"),
    top("output.weight", "head.weight"),
    *(top(f"output_hc_{part}.weight", f"hc_head_{part}") for part in _PARTS),
)
_HYPER: tuple[Rule, ...] = tuple(
    block(f"hc_{module}_{part}.weight", f"hc_{module}_{part}") for module in ("attn", "ffn") for part in _PARTS
)
_ATTENTION: tuple[Rule, ...] = (
    *weights(
        (
            ("attn_norm", "attn_norm"),
            ("attn_q_a", "attn.wq_a"),
            ("attn_q_a_norm", "attn.q_norm"),
            ("attn_q_b", "attn.wq_b"),
            ("attn_kv", "attn.wkv"),
            ("attn_kv_a_norm", "attn.kv_norm"),
            ("attn_output_a", "attn.wo_a"),
            ("attn_output_b", "attn.wo_b"),
        )
    ),
    block("attn_sinks.weight", "attn.attn_sink"),
)


def _compressor(stored: str, module: str) -> tuple[Rule, ...]:
    names = (("kv", "wkv"), ("gate", "wgate"), ("norm", "norm"))
    return (
        *weights(tuple((f"{stored}_{a}", f"{module}.{b}") for a, b in names)),
        block(f"{stored}_ape.weight", f"{module}.ape"),
    )


_INDEXER: tuple[Rule, ...] = (
    *weights((("indexer.attn_q_b", "attn.indexer.wq_b"), ("indexer.proj", "attn.indexer.weights_proj"))),
    *_compressor("indexer_compressor", "attn.indexer.compressor"),
)
_NUMBERED = (("gate", "w1"), ("down", "w2"), ("up", "w3"))
_EXPERTS: tuple[Rule, ...] = (
    *weights((("ffn_norm", "ffn_norm"), ("ffn_gate_inp", "ffn.gate"))),
    *(block(f"ffn_{part}_exps.weight", f"ffn.experts.{{eid}}.{w}.weight", "experts") for part, w in _NUMBERED),
    *weights(tuple((f"ffn_{part}_shexp", f"ffn.shared_experts.{w}") for part, w in _NUMBERED)),
    *only((block("ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"),), "hash_routed"),
    *only((block("exp_probs_b.bias", "ffn.gate.bias"),), "score_routed"),
)

DEEPSEEK4 = Architecture(
    names=("deepseek4",),
    model_type="deepseek_v4",
    model_class="DeepseekV4ForCausalLM",
    rules=_OUTSIDE
    + renamed(
        _HYPER
        + _ATTENTION
        + only(_compressor("attn_compressor", "attn.compressor"), "compressed_keys")
        + only(_INDEXER, "indexed_keys")
        + _EXPERTS,
        "model.",
        "",
    ),
    config=(
        *without(BASE_CONFIG, "intermediate_size"),
        derived("num_key_value_heads"),
        derived("head_dim"),
        header("q_lora_rank", "attention.q_lora_rank"),
        header("o_lora_rank", "attention.output_lora_rank"),
        header("o_groups", "attention.output_group_count"),
        derived("qk_rope_head_dim"),
        header("sliding_window", "attention.sliding_window"),
        derived("compress_ratios"),
        header("rope_theta", "rope.freq_base"),
        header("compress_rope_theta", "attention.compress_rope_freq_base"),
        derived("rope_scaling", "published_rope_scaling"),
        *INDEXER_CONFIG,
        header("hc_mult", "hyper_connection.count"),
        header("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
        header("hc_eps", "hyper_connection.epsilon"),
        header("n_routed_experts", "expert_count"),
        header("n_shared_experts", "expert_shared_count"),
        header("num_experts_per_tok", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("routed_scaling_factor", "expert_weights_scale"),
        header("num_hash_layers", "hash_layer_count"),
        derived("norm_topk_prob"),
        derived("scoring_func", "scoring_func_v4"),
        derived("topk_method"),
        derived("swiglu_limit"),
        derived("num_nextn_predict_layers"),
        *assumed(hidden_act="silu", attention_bias=False),
    ),
    skips=(
        *ROPE_FREQS,
        Skip("blk.{bid}.exp_probs_b_vl.bias", "routes image tokens; the text model has no place for it"),
    ),
    bf16_only=DEEPSEEK2.bf16_only,
)
