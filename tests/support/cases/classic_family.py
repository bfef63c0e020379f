"""Families older than Llama's tree, or beside it: Phi, GLM-4, Cohere, StableLM, GPT-2, BLOOM, Falcon, Nemotron."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support import tiny_tokenizers
from support.conformance import BASE, TOKENS, Case, Dtype, values

_LONGROPE = {
    "max_position_embeddings": 2048,
    "original_max_position_embeddings": 512,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 512,
        "short_factor": [1.0 + 0.125 * i for i in range(16)],
        "long_factor": [2.0 + 0.25 * i for i in range(16)],
    },
}
_PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}}
_GLM_PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.5}}
_LAYER_NORM = {"rms_norm_eps": ..., "layer_norm_eps": 3e-5}
_PARTIAL_IN_ROPE = {"partial_rotary_factor": "rope_parameters says it, where vLLM reads it"}


def _with_context(config: dict[str, Any]) -> dict[str, Any]:
    """GPT-2's old name for the context length, which the converter reads and transformers 5 no longer writes."""
    return {**config, "n_ctx": config["n_positions"]}


def _written(
    name: str, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], tokenizer: str
) -> Callable[[Path, Dtype], None]:
    """Writes a checkpoint of a class that transformers does not have; `{n}` in a name stands for each of its layers."""

    def write(folder: Path, dtype: Dtype) -> None:
        import torch
        from safetensors.torch import save_file

        layers = config.get("num_hidden_layers", config.get("num_layers"))
        tensors = {}
        for template, shape in shapes.items():
            for n in range(layers if "{n}" in template else 1):
                tensor = template.format(n=n)
                tensors[tensor] = values(f"{name}/{tensor}", shape).to(getattr(torch, dtype)).contiguous()
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=1))
        tiny_tokenizers.WRITERS[tokenizer](folder)

    return write


_LLAMA_LIKE = {**BASE, **TOKENS["llama"], "model_type": "llama", "hidden_act": "silu", "head_dim": 32}
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 50_000.0}

_INTERNLM2_SHAPES = {
    "model.tok_embeddings.weight": (512, 256),
    "model.norm.weight": (256,),
    "output.weight": (512, 256),
    "model.layers.{n}.attention_norm.weight": (256,),
    "model.layers.{n}.ffn_norm.weight": (256,),
    "model.layers.{n}.attention.wqkv.weight": (384, 256),
    "model.layers.{n}.attention.wo.weight": (256, 256),
    "model.layers.{n}.feed_forward.w1.weight": (512, 256),
    "model.layers.{n}.feed_forward.w3.weight": (512, 256),
    "model.layers.{n}.feed_forward.w2.weight": (256, 512),
}
_INTERNLM2 = {**_LLAMA_LIKE, "architectures": ["InternLM2ForCausalLM"], "rope_parameters": _DEFAULT_ROPE}

_LLAMA_SHAPES = {
    "model.embed_tokens.weight": (512, 256),
    "model.norm.weight": (256,),
    "lm_head.weight": (512, 256),
    "model.layers.{n}.input_layernorm.weight": (256,),
    "model.layers.{n}.post_attention_layernorm.weight": (256,),
    "model.layers.{n}.self_attn.q_proj.weight": (256, 256),
    "model.layers.{n}.self_attn.k_proj.weight": (64, 256),
    "model.layers.{n}.self_attn.v_proj.weight": (64, 256),
    "model.layers.{n}.self_attn.o_proj.weight": (256, 256),
    "model.layers.{n}.mlp.gate_proj.weight": (512, 256),
    "model.layers.{n}.mlp.up_proj.weight": (512, 256),
    "model.layers.{n}.mlp.down_proj.weight": (256, 512),
}
_MINICPM = {
    **_LLAMA_LIKE,
    "architectures": ["MiniCPMForCausalLM"],
    "rope_parameters": _DEFAULT_ROPE,
    "scale_emb": 6.0,
    "scale_depth": 1.25,
    "dim_model_base": 128,
}
_ORION_SHAPES = {
    **_LLAMA_SHAPES,
    "model.norm.bias": (256,),
    "model.layers.{n}.input_layernorm.bias": (256,),
    "model.layers.{n}.post_attention_layernorm.bias": (256,),
}
_ORION = {
    **_LLAMA_LIKE,
    "architectures": ["OrionForCausalLM"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
_EXAONE_SHAPES = {
    "transformer.wte.weight": (512, 256),
    "transformer.ln_f.weight": (256,),
    "lm_head.weight": (512, 256),
    "transformer.h.{n}.ln_1.weight": (256,),
    "transformer.h.{n}.ln_2.weight": (256,),
    "transformer.h.{n}.attn.attention.q_proj.weight": (256, 256),
    "transformer.h.{n}.attn.attention.k_proj.weight": (64, 256),
    "transformer.h.{n}.attn.attention.v_proj.weight": (64, 256),
    "transformer.h.{n}.attn.attention.out_proj.weight": (256, 256),
    "transformer.h.{n}.mlp.c_fc_0.weight": (512, 256),
    "transformer.h.{n}.mlp.c_fc_1.weight": (512, 256),
    "transformer.h.{n}.mlp.c_proj.weight": (256, 512),
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_EXAONE = {
    **_LLAMA_LIKE,
    **TOKENS["qwen"],
    "architectures": ["ExaoneForCausalLM"],
    "rms_norm_eps": 3e-5,
    "activation_function": "silu",
    "layer_norm_epsilon": 3e-5,
    "rope_parameters": _LLAMA3_ROPE,
}
_CHATGLM_SHAPES = {
    "transformer.embedding.word_embeddings.weight": (512, 256),
    "transformer.encoder.final_layernorm.weight": (256,),
    "transformer.output_layer.weight": (512, 256),
    "transformer.encoder.layers.{n}.input_layernorm.weight": (256,),
    "transformer.encoder.layers.{n}.post_attention_layernorm.weight": (256,),
    "transformer.encoder.layers.{n}.self_attention.query_key_value.weight": (384, 256),
    "transformer.encoder.layers.{n}.self_attention.query_key_value.bias": (384,),
    "transformer.encoder.layers.{n}.self_attention.dense.weight": (256, 256),
    "transformer.encoder.layers.{n}.mlp.dense_h_to_4h.weight": (1024, 256),
    "transformer.encoder.layers.{n}.mlp.dense_4h_to_h.weight": (256, 512),
}
_CHATGLM = {
    **TOKENS["glm"],
    "architectures": ["ChatGLMForConditionalGeneration"],
    "model_type": "chatglm",
    "num_layers": 3,
    "padded_vocab_size": 512,
    "vocab_size": 512,
    "hidden_size": 256,
    "ffn_hidden_size": 512,
    "kv_channels": 32,
    "num_attention_heads": 8,
    "seq_length": 512,
    "layernorm_epsilon": 3e-5,
    "rmsnorm": True,
    "apply_residual_connection_post_layernorm": False,
    "post_layer_norm": True,
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "original_rope": True,
    "rope_ratio": 50.0,
    "fp32_residual_connection": False,
    "tie_word_embeddings": False,
}

CASES = (
    Case(
        "phi3",
        "Phi3ForCausalLM",
        {"original_max_position_embeddings": 512, "sliding_window": 64},
        tokenizer="llama",
    ),
    Case("phi3_longrope", "Phi3ForCausalLM", {**_LONGROPE, "sliding_window": None}, tokenizer="llama"),
    Case(
        "glm4",
        "Glm4ForCausalLM",
        {**_GLM_PARTIAL, "head_dim": 64, "attention_bias": True},
        tokenizer="glm",
        ignore=_PARTIAL_IN_ROPE,
    ),
    Case(
        "glm",
        "GlmForCausalLM",
        {**_PARTIAL, "attention_bias": True, "head_dim": 32},
        tokenizer="glm",
        ignore={**_PARTIAL_IN_ROPE, "max_position_embeddings": "the converter writes hidden_size in its place"},
    ),
    Case(
        "cohere",
        "CohereForCausalLM",
        {**_LAYER_NORM, "use_qk_norm": True, "logit_scale": 0.125, "tie_word_embeddings": True},
        pre="command-r",
    ),
    Case(
        "cohere_plain",
        "CohereForCausalLM",
        {**_LAYER_NORM, "use_qk_norm": False, "tie_word_embeddings": True},
        pre="command-r",
    ),
    Case(
        "cohere2",
        "Cohere2ForCausalLM",
        {
            **_LAYER_NORM,
            "num_hidden_layers": 5,
            "sliding_window": 16,
            "logit_scale": 0.125,
            "rotary_pct": 1.0,
            "tie_word_embeddings": True,
        },
        pre="command-r",
        ignore={"rotary_pct": "all of it is rotated in every model, and vLLM does not read it"},
    ),
    Case(
        "stablelm",
        "StableLmForCausalLM",
        {**_LAYER_NORM, **_PARTIAL, "use_qkv_bias": True},
        pre="stablelm2",
        ignore=_PARTIAL_IN_ROPE,
    ),
    Case(
        "starcoder2",
        "Starcoder2ForCausalLM",
        {"rms_norm_eps": ..., "norm_epsilon": 3e-5, "use_bias": True, "tie_word_embeddings": True},
        pre="starcoder",
    ),
    Case(
        "gpt2",
        "GPT2LMHeadModel",
        {
            "vocab_size": 512,
            "n_positions": 512,
            "n_embd": 256,
            "n_layer": 3,
            "n_head": 8,
            "n_inner": 1024,
            "layer_norm_epsilon": 3e-5,
        },
        base=False,
        pre="gpt-2",
        config_json=_with_context,
        ignore=dict.fromkeys(
            ("attn_pdrop", "embd_pdrop", "resid_pdrop"),
            "training",
        )
        | dict.fromkeys(
            (
                "summary_activation",
                "summary_first_dropout",
                "summary_proj_to_labels",
                "summary_type",
                "summary_use_proj",
            ),
            "of the classification heads",
        ),
    ),
    Case(
        "bloom",
        "BloomForCausalLM",
        {"vocab_size": 512, "hidden_size": 256, "n_layer": 3, "n_head": 8, "layer_norm_epsilon": 3e-5},
        base=False,
        pre="bloom",
    ),
    Case(
        "falcon",
        "FalconForCausalLM",
        {
            "vocab_size": 512,
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 2,
            "layer_norm_epsilon": 3e-5,
        },
        base=False,
        pre="falcon",
        ignore={"multi_query": "the new decoder does not read it"},
    ),
    Case(
        "falcon_7b",
        "FalconForCausalLM",
        {
            "vocab_size": 512,
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_kv_heads": 1,
            "layer_norm_epsilon": 3e-5,
            "tie_word_embeddings": False,
        },
        base=False,
        pre="falcon",
    ),
    Case(
        "falcon_11b",
        "FalconForCausalLM",
        {
            "vocab_size": 512,
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_kv_heads": 4,
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 1,
        },
        base=False,
        pre="falcon",
        ignore={"multi_query": "the new decoder does not read it"},
    ),
    Case(
        "nemotron",
        "NemotronForCausalLM",
        {"rms_norm_eps": ..., "norm_eps": 3e-5, "head_dim": 32, **_PARTIAL},
        tokenizer="llama",
        ignore={**_PARTIAL_IN_ROPE, "pad_token_id": "the converter writes 0, whatever the model has"},
    ),
    Case(
        "phi2",
        "PhiForCausalLM",
        {**_LAYER_NORM, **_PARTIAL, "intermediate_size": 1024, "num_key_value_heads": 8},
        pre="phi-2",
        ignore=_PARTIAL_IN_ROPE,
        not_traced="vLLM's Transformers class makes lm_head.bias while it loads: the built model has no such parameter",
    ),
    Case(
        "exaone4",
        "Exaone4ForCausalLM",
        {"num_hidden_layers": 5, "sliding_window": 16, "rope_parameters": _LLAMA3_ROPE},
        pre="exaone4",
        ignore={"sliding_window_pattern": "layer_types says the same"},
    ),
    Case(
        "exaone4_full",
        "Exaone4ForCausalLM",
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "tie_word_embeddings": True},
        pre="exaone4",
        ignore={"sliding_window_pattern": "layer_types says the same"},
    ),
    Case("exaone", "ExaoneForCausalLM", write=_written("exaone", _EXAONE_SHAPES, _EXAONE, "qwen"), pre="exaone"),
    Case(
        "minicpm", "MiniCPMForCausalLM", write=_written("minicpm", _LLAMA_SHAPES, _MINICPM, "llama"), tokenizer="llama"
    ),
    Case(
        "minicpm3",
        "MiniCPM3ForCausalLM",
        {
            "num_key_value_heads": 8,
            "q_lora_rank": 128,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 48,
            "tie_word_embeddings": True,
        },
        tokenizer="llama",
        ignore={
            "head_dim": "the config class computes it",
            "qk_head_dim": "the config class computes it",
        },
    ),
    Case(
        "internlm2",
        "InternLM2ForCausalLM",
        write=_written("internlm2", _INTERNLM2_SHAPES, _INTERNLM2, "llama"),
        tokenizer="llama",
    ),
    Case(
        "chatglm",
        "ChatGLMForConditionalGeneration",
        write=_written("chatglm", _CHATGLM_SHAPES, _CHATGLM, "glm"),
        tokenizer="glm",
    ),
    Case(
        "internlm3",
        "LlamaForCausalLM",
        vllm_class="InternLM3ForCausalLM",
        tokenizer="llama",
        ignore={"architectures": "the file says llama: vLLM runs LlamaForCausalLM for both names"},
    ),
    Case("orion", "OrionForCausalLM", write=_written("orion", _ORION_SHAPES, _ORION, "llama"), tokenizer="llama"),
    Case("apertus", "ApertusForCausalLM", {"rope_parameters": _LLAMA3_ROPE}, tokenizer="llama3", pre="tekken"),
)
