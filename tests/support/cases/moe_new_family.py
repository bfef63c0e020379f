"""GPT-OSS, Llama 4, Ministral 3, DeepSeek v1, Kimi K2, AFMoE, EXAONE MoE, Step 3.5, MiMo V2."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from support.conformance import Case, Tensors, values

_DERIVED_SIZES = {
    "head_dim": "transformers' second name of qk_rope_head_dim, which vLLM does not read",
    "qk_head_dim": "the sum of the two parts, which vLLM adds up itself",
    "rope_interleave": "true in every MLA model, and vLLM does not read it",
}


def _packed_experts(tensors: Tensors, config: Any) -> Tensors:
    """GPT-OSS as published: experts in MXFP4, blocks of 32 values with a scale each."""
    import torch

    found: Tensors = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = tensor
            continue
        experts, columns, rows = tensor.shape
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        shape = (experts, rows, columns // 32, 16)
        found[f"{name}_blocks"] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        found[f"{name}_scales"] = torch.randint(120, 126, shape[:3], generator=generator, dtype=torch.uint8)
    return found


def _unpacked_experts(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """The same in plain numbers, by transformers."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for name, blocks in tensors.items():
        if name.endswith("_blocks"):
            plain = name.removesuffix("_blocks")
            found[plain] = convert_moe_packed_tensors(blocks, tensors[f"{plain}_scales"])
    return found


def _mxfp4(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}


def _exaone_mtp(tensors: Tensors, config: Any) -> Tensors:
    """With the MTP block of K-EXAONE: a dense decoder block, one projection, three norms."""
    hidden, size = config.hidden_size, config.intermediate_size
    attention = {n: t for n, t in tensors.items() if n.startswith("model.layers.0.") and "mlp" not in n}
    block = {name.removeprefix("model.layers.0."): tuple(tensor.shape) for name, tensor in attention.items()}
    block |= {f"mlp.{part}_proj.weight": (size, hidden) for part in ("gate", "up")}
    block["mlp.down_proj.weight"] = (hidden, size)
    shapes = {f"mtp.layers.0.{name}": shape for name, shape in block.items()}
    shapes |= {f"mtp.{name}.weight": (hidden,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    shapes["mtp.fc.weight"] = (hidden, 2 * hidden)
    return tensors | {name: values(f"mtp/{name}", shape) for name, shape in shapes.items()}


_GPT_OSS = Case(
    "gpt_oss",
    "GptOssForCausalLM",
    {
        "num_hidden_layers": 4,
        "head_dim": 64,
        "intermediate_size": 256,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
    pre="gpt-4o",
)

CASES = (
    _GPT_OSS,
    replace(
        _GPT_OSS,
        name="gpt_oss_mxfp4",
        publish=_packed_experts,
        config_json=_mxfp4,
        stored=_unpacked_experts,
        ignore={"quantization_config": "the GGUF's MXFP4 blocks are decoded: vLLM gets the bfloat16 checkpoint"},
        not_run="vLLM-CPU cannot run the original: it has no MXFP4 experts",
    ),
    Case(
        "llama4",
        "Llama4ForCausalLM",
        {
            "num_hidden_layers": 4,
            "head_dim": 64,
            "intermediate_size": 256,
            "intermediate_size_mlp": 512,
            "num_local_experts": 6,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192,
            # As Scout's: a step instead of a ramp. Its length is any power of two between two frequencies.
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
            },
        },
        pre="llama4",
    ),
    Case(
        "ministral3",
        "Ministral3ForCausalLM",
        {
            "head_dim": 64,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale_all_dim": 1.0,
                "mscale": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        pre="tekken",
    ),
    Case(
        "afmoe",
        "AfmoeForCausalLM",
        {
            "num_hidden_layers": 5,
            "head_dim": 64,
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "moe_intermediate_size": 256,
            "route_scale": 2.5,
            "sliding_window": 16,
            "mup_enabled": True,
            "score_func": "sigmoid",
            "route_norm": True,
            "n_group": 1,
            "topk_group": 1,
        },
        pre="afmoe",
    ),
    Case(
        "exaone_moe",
        "ExaoneMoeForCausalLM",
        {
            "num_hidden_layers": 5,
            "head_dim": 64,
            "first_k_dense_replace": 1,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "num_shared_experts": 2,
            "moe_intermediate_size": 256,
            "sliding_window": 16,
            "sliding_window_pattern": "LLLG",
            "num_nextn_predict_layers": 1,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2,
            "routed_scaling_factor": 2.25,
            "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0},
        },
        publish=_exaone_mtp,
        pre="exaone-moe",
        ignore={"sliding_window_pattern": "layer_types says the same"},
    ),
    Case(
        "kimi_k2",
        "DeepseekV3ForCausalLM",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 256,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 0,
            "topk_method": "noaux_tc",
            "scoring_func": "sigmoid",
            "q_lora_rank": 192,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.827,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 50000.0,
                "factor": 32.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 1.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        pre="kimi-k2",
        ignore=_DERIVED_SIZES,
        run_dtype="bfloat16",  # vLLM-CPU's kernel for grouped experts takes no float32
        note="Kimi K2: DeepSeek V3's class",
    ),
    Case(
        "deepseek_v2_mla512",
        "DeepseekV2ForCausalLM",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 256,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
        },
        pre="deepseek-llm",
        ignore={**_DERIVED_SIZES, "mlp_bias": "false in every published model, and vLLM does not read it"},
        run_dtype="bfloat16",
    ),
)
