"""Tiny random Hugging Face checkpoints that are complete: config, safetensors weights, tokenizer.

Every parameter is random, norms and biases too, so that a swapped, permuted or forgotten tensor shows.
Every value is exact in bfloat16, and a Gemma norm weight w is a multiple of 2^-7 of magnitude 2 at most, so
that the converter's w + 1 and the way back are exact in float32. Rows are multiples of 256 long, so that
K-quants fit. The same name and dtype give the same files, byte for byte.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from support import tiny_tokenizers

Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TinyModel:
    """A checkpoint folder that `write` made."""

    name: str
    folder: Path
    architecture: str  # GGUF's general.architecture
    model_class: str  # transformers' and vLLM's name for the class
    dtype: Dtype
    pre: str  # what the converter is told that its pre-tokenizer is
    tied: bool  # no lm_head in the checkpoint


@dataclass(frozen=True)
class _Spec:
    architecture: str
    family: str  # transformers' class prefix: <family>Config, <family>ForCausalLM
    tokenizer: str
    config: Mapping[str, Any] = field(default_factory=dict)
    config_class: str = ""
    generation: Mapping[str, Any] = field(default_factory=dict)


_COMMON: dict[str, Any] = {
    "vocab_size": tiny_tokenizers.VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,  # nobody's default
}
# Token ids, as each kind of tokenizer has them.
_TOKENS: dict[str, dict[str, Any]] = {
    # As in the real ones: a BOS id in the config that no text ever starts with.
    "qwen": {"bos_token_id": 509, "eos_token_id": 511, "pad_token_id": 509},
    "llama3": {"bos_token_id": 509, "eos_token_id": 510, "pad_token_id": None},
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
    "gemma": {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
}
_PRE = {"qwen": "qwen2", "llama3": "llama-bpe", "llama": "default", "gemma": "default"}

_GEMMA: dict[str, Any] = {
    "num_hidden_layers": 7,  # every sixth layer sees everything: 5 sliding, 1 full, 1 sliding
    "num_attention_heads": 4,
    "head_dim": 128,
    # The converter does not write this one, and every size but 27B has it equal to head_dim.
    "query_pre_attn_scalar": 128,
    "sliding_window": 16,
    "tie_word_embeddings": True,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_GEMMA_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
}
_TIED = {"tie_word_embeddings": True}
_WIDE = {"head_dim": 64}  # 8 heads of 64 are twice the hidden size


def _theta(value: float) -> dict[str, Any]:
    # Mostly other values than the classes' defaults, so that a lost key shows.
    return {"rope_parameters": {"rope_type": "default", "rope_theta": value}}


_QWEN3_SAMPLING = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}

SPECS: dict[str, _Spec] = {
    "llama": _Spec("llama", "Llama", "llama", _theta(20000.0)),
    "llama_tied": _Spec("llama", "Llama", "llama3", {**_TIED, **_theta(30000.0)}),
    "llama_rope3": _Spec(
        "llama",
        "Llama",
        "llama3",
        {"rope_parameters": _LLAMA3_ROPE, "attention_bias": True, "mlp_bias": True},
    ),
    "llama_wide": _Spec("llama", "Llama", "llama", {**_WIDE, **_theta(40000.0)}),
    "mistral": _Spec("llama", "Mistral", "llama", {"head_dim": 32, "sliding_window": None, **_theta(1e6)}),
    # As the real ones do, this one has more embedding rows than its tokenizer has tokens.
    "qwen2": _Spec("qwen2", "Qwen2", "qwen", {"vocab_size": 544, **_theta(1e6)}),
    "qwen2_tied": _Spec("qwen2", "Qwen2", "qwen", {**_TIED, **_theta(50000.0)}),
    "qwen3": _Spec("qwen3", "Qwen3", "qwen", {"head_dim": 32, **_theta(5e6)}, generation=_QWEN3_SAMPLING),
    "qwen3_wide": _Spec("qwen3", "Qwen3", "qwen", {**_WIDE, **_TIED, **_theta(1e6)}),
    "gemma3": _Spec("gemma3", "Gemma3", "gemma", _GEMMA, "Gemma3TextConfig"),
    "gemma3_linear_rope": _Spec(
        "gemma3", "Gemma3", "gemma", {**_GEMMA, "rope_parameters": _GEMMA_ROPE}, "Gemma3TextConfig"
    ),
}
NAMES = tuple(SPECS)


def write(name: str, folder: Path, dtype: Dtype = "float32") -> TinyModel:
    """Write the checkpoint called `name` into `folder` (made when absent) and describe it."""
    import torch
    import transformers

    spec = SPECS[name]
    model_class = f"{spec.family}ForCausalLM"
    folder.mkdir(parents=True, exist_ok=True)
    config_class = getattr(transformers, spec.config_class or f"{spec.family}Config")
    config = config_class(**{**_COMMON, **_TOKENS[spec.tokenizer], **spec.config}, architectures=[model_class])
    model = getattr(transformers, model_class)(config).float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(_values(name, parameter_name, tuple(parameter.shape), spec))
    model.to(getattr(torch, dtype))
    model.config.dtype = dtype
    model.generation_config.update(**spec.generation)
    model.save_pretrained(folder)
    tiny_tokenizers.WRITERS[spec.tokenizer](folder)
    return TinyModel(
        name=name,
        folder=folder,
        architecture=spec.architecture,
        model_class=model_class,
        dtype=dtype,
        pre=_PRE[spec.tokenizer],
        tied=bool(config.tie_word_embeddings),
    )


def _values(model: str, name: str, shape: tuple[int, ...], spec: _Spec) -> Any:
    """Random values, exact in bfloat16, of a magnitude that fits the parameter's role."""
    import torch

    # Seeded by name, so that neither the order nor the number of parameters matters.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{model}/{name}".encode()))
    gemma = spec.family == "Gemma3"
    if len(shape) == 1:
        steps = torch.randint(-64, 65, shape, generator=generator)
        if "norm" in name:
            steps += 128
        if name == "model.norm.weight":
            # Both signs: with one only, a model with tied embeddings mostly repeats its input.
            sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
            steps = (steps // 2 + 32) * sign
        if "norm" in name and gemma:
            steps -= 128
            if ".post_" in name:  # what the layers add: let it outweigh the last token's own embedding
                steps += 160
        return steps / 128
    values = torch.randn(shape, generator=generator)
    if "embed_tokens" in name or "lm_head" in name:
        # Gemma multiplies its embeddings by sqrt(hidden_size) = 16 on the way in.
        values *= 0.25 if gemma else 0.5
    else:
        values *= shape[1] ** -0.5
    return values.to(torch.bfloat16).float()
