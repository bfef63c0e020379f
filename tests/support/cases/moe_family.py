"""Mixtral, OLMo, MiniMax, Ernie, Phi-MoE, Bailing and other families with experts, and their dense kin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from support.conformance import HIDDEN, Case, Tensors, values

NO_SIGMOID = "vLLM's CPU router has sigmoid scores for grouped experts only (cpu_router.py asserts softmax)"
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3}
_LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 3}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 20_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 24.0,
    "beta_slow": 1.5,
}
_OLMO3_ROPE = {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0}}
_HUNYUAN_ROPE = {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 1000.0, "factor": 1.0}
_LONG_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0 + i / 16 for i in range(16)],
    "long_factor": [2.0 + i / 8 for i in range(16)],
    "short_mscale": 1.243163121016122,
    "long_mscale": 1.243163121016122,
}

# Kept from the stand-in: what the config class of a real repository would write beside its own keys.
_BAILING_LLAMA = ("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "vocab_size", "hidden_size")
_BAILING = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_rmsnorm": True,
    "norm_head": False,
    "embedding_dropout": 0.0,
    "output_dropout": 0.0,
}
_BAILING_V1 = {**_BAILING, "use_qk_norm": False, "first_k_dense_replace": 0}
_BAILING_V2 = {
    **_BAILING,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "moe_shared_expert_intermediate_size": 256,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "n_group": 4,
    "topk_group": 2,
    "moe_router_enable_expert_bias": True,
    "router_dtype": "fp32",
}


def _bailing_shapes(v2: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    vocab, hidden, dense, expert, heads, kv, head = 512, HIDDEN, 512, 256, 8, 2, 64
    yield from (("model.word_embeddings.weight", (vocab, hidden)), ("lm_head.weight", (vocab, hidden)))
    yield "model.norm.weight", (hidden,)
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        yield f"{prefix}input_layernorm.weight", (hidden,)
        yield f"{prefix}post_attention_layernorm.weight", (hidden,)
        yield f"{prefix}attention.query_key_value.weight", ((heads + 2 * kv) * head, hidden)
        yield f"{prefix}attention.dense.weight", (hidden, heads * head)
        if v2:
            yield f"{prefix}attention.query_layernorm.weight", (head,)
            yield f"{prefix}attention.key_layernorm.weight", (head,)
        mlps = {"": dense}
        experts = layer or not v2  # the first block is dense in version 2
        if experts:
            mlps = {"shared_experts.": 2 * expert, **{f"experts.{e}.": expert for e in range(8)}}
            yield f"{prefix}mlp.gate.weight", (8, hidden)
        if experts and v2:
            yield f"{prefix}mlp.gate.expert_bias", (8,)
        for mlp, size in mlps.items():
            yield f"{prefix}mlp.{mlp}gate_proj.weight", (size, hidden)
            yield f"{prefix}mlp.{mlp}up_proj.weight", (size, hidden)
            yield f"{prefix}mlp.{mlp}down_proj.weight", (hidden, size)


def _centred(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The router's biases with a mean of zero, as the converter makes Sarvam's."""
    return {name: t - t.mean() if name.endswith(".expert_bias") else t for name, t in tensors.items()}


def _bailing(version: str, v2: bool, config: dict[str, Any], pre: str) -> Case:
    """transformers has no such class: Llama stands in, all of its tensors and most of its config replaced."""
    return Case(
        f"bailing_moe{'2' if v2 else ''}",
        "LlamaForCausalLM",
        {"num_hidden_layers": 1},
        pre=pre,
        vllm_class=f"BailingMoe{version}ForCausalLM",
        publish=lambda tensors, _: {name: values(f"bailing{version}/{name}", x) for name, x in _bailing_shapes(v2)},
        config_json=lambda old: {
            **{key: old[key] for key in (*_BAILING_LLAMA, "architectures", "dtype")},
            **config,
            **({"rope_parameters": {**old["rope_parameters"], "partial_rotary_factor": 0.5}} if v2 else {}),
        },
    )


_BAILING2 = _bailing("V2", v2=True, config=_BAILING_V2, pre="bailingmoe2")
_SARVAM = {key: value for key, value in _BAILING_V2.items() if key != "partial_rotary_factor"}

CASES = (
    Case(
        "mixtral",
        "MixtralForCausalLM",
        {**_LOCAL, "sliding_window": None, "head_dim": 32},
        tokenizer="llama",
    ),
    Case("olmoe", "OlmoeForCausalLM", _EXPERTS, pre="olmo"),
    Case("olmo", "OlmoForCausalLM", {"rms_norm_eps": ..., "tie_word_embeddings": True, "clip_qkv": 8.0}, pre="olmo"),
    Case("olmo2", "Olmo2ForCausalLM", pre="olmo"),
    Case(
        "olmo3",
        "Olmo3ForCausalLM",
        {"num_hidden_layers": 5, "sliding_window": 16, "rope_parameters": _OLMO3_ROPE},
        pre="olmo",
    ),
    Case(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        {
            **_LOCAL,
            "head_dim": 64,
            "rotary_dim": 32,
            "intermediate_size": 256,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "use_qk_norm": True,
            "qk_norm_type": "per_layer",
        },
        pre="minimax-m2",
        not_run=NO_SIGMOID,
    ),
    Case("ernie45", "Ernie4_5ForCausalLM", {"head_dim": 64, "tie_word_embeddings": True}, tokenizer="llama"),
    Case(
        "ernie45_moe",
        "Ernie4_5_MoeForCausalLM",
        {
            "num_hidden_layers": 4,
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 256,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 3,
            "moe_layer_interval": 1,
        },
        tokenizer="llama",
    ),
    Case(
        "phimoe",
        "PhimoeForCausalLM",
        {
            **_LOCAL,
            "num_experts_per_tok": 2,  # vLLM's PhiMoE routes to two
            "attention_bias": True,
            "lm_head_bias": True,
            "max_position_embeddings": 131_072,
            "original_max_position_embeddings": 4096,
            "rope_parameters": _LONG_ROPE,
            "sliding_window": None,
        },
        tokenizer="llama",
        vllm_class="PhiMoEForCausalLM",
    ),
    Case(
        "smollm3",
        "SmolLM3ForCausalLM",
        {"num_hidden_layers": 5, "tie_word_embeddings": True},
        tokenizer="llama3",
        pre="smaug-bpe",
    ),
    Case(
        "seed_oss",
        "SeedOssForCausalLM",
        {"head_dim": 64},
        pre="seed-coder",
        ignore={"residual_dropout": "training"},
    ),
    Case(
        "hunyuan_dense",
        "HunYuanDenseV1ForCausalLM",
        {
            "head_dim": 64,
            "eod_token_id": 511,
            "max_position_embeddings": 32_768,
            "rope_parameters": _HUNYUAN_ROPE,
            "tie_word_embeddings": True,
        },
        pre="hunyuan-dense",
        ignore={
            "rope_parameters": "the converter bakes alpha into the base, which computes the same",
            "max_position_embeddings": "the converter writes the 256 k that the alpha is for (conversion/hunyuan.py)",
        },
    ),
    _bailing("", v2=False, config=_BAILING_V1, pre="bailingmoe"),
    _BAILING2,
    replace(
        _BAILING2,
        name="sarvam_moe",
        vllm_class="SarvamMoEForCausalLM",
        config_json=lambda old: {**{key: old[key] for key in (*_BAILING_LLAMA, "architectures", "dtype")}, **_SARVAM},
        stored=_centred,
        pre="sarvam-moe",
    ),
    Case("arcee", "ArceeForCausalLM", {"rope_parameters": _YARN}, tokenizer="llama3"),
)
