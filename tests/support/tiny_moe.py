"""Tiny random checkpoints of the GLM and DeepSeek families: MLA, experts, indexers and MTP blocks, as published.

transformers' classes have no MTP block and save experts fused, so the tensors are written from a table of names and
shapes: the real repositories' names. Values are as in `tiny_models`: random everywhere, exact in bfloat16, the same for
the same name. In `..._echo` the next token depends on the last one's embedding alone, in trunk and draft alike, so that
a draft that gets its own weights (and only then) predicts exactly what the target does. In `..._near` the blocks add a
little to that, so that it often does: how often depends on every weight of both.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from support import tiny_tokenizers
from support.tiny_models import Dtype, TinyModel
from support.tiny_moe_specs import EXPERTS, FAMILIES, HIDDEN, NAMES, SPECS, Config, MoeSpec

__all__ = ["EXPERTS", "FAMILIES", "HIDDEN", "NAMES", "SPECS", "MoeSpec", "shapes", "tensors", "write"]

Shapes = dict[str, tuple[int, ...]]


def write(name: str, folder: Path, dtype: Dtype = "float32") -> TinyModel:
    """Write the checkpoint called `name` into `folder` (made when absent) and describe it."""
    from safetensors.torch import save_file

    spec = SPECS[name]
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(name, dtype), folder / "model.safetensors", metadata={"format": "pt"})
    config = {**_document(spec), "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for file, content in _tokenizer("deepseek" if spec.pre.startswith("deepseek") else "glm").items():
        (folder / file).write_text(content)
    return TinyModel(
        name=name,
        folder=folder,
        architecture=spec.architecture,
        model_class=config["architectures"][0],
        dtype=dtype,
        pre=spec.pre,
        tied=False,
    )


def _document(spec: MoeSpec) -> Config:
    """config.json: GLM-5.3 has the text model's keys in a dictionary of their own."""
    if spec.text["model_type"] != "glm5_next_text":
        return spec.text
    outer = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next"}
    return {**outer, "text_config": spec.text, "tie_word_embeddings": False}


def shapes(name: str) -> Shapes:
    """Every tensor of the checkpoint and its shape."""
    spec = SPECS[name]
    config = spec.text
    root = "model.language_model." if config["model_type"] == "glm5_next_text" else "model."
    vocabulary = (config["vocab_size"], HIDDEN)
    found: Shapes = {f"{root}embed_tokens.weight": vocabulary}
    for bid in range(spec.draft_blocks.stop):
        block = dict(_attention(config, bid)) | dict(_ffn(config, bid))
        block |= {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
        if bid in spec.draft_blocks:
            block |= dict.fromkeys(("enorm.weight", "hnorm.weight", "shared_head.norm.weight"), (HIDDEN,))
            block["eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
            if spec.own_head:
                block |= {"embed_tokens.weight": vocabulary, "shared_head.head.weight": vocabulary}
        elif config.get("mhc"):
            block |= dict(_hyper_connections(config))
        found |= {f"{root}layers.{bid}.{tensor}": shape for tensor, shape in block.items()}
    return found | {f"{root}norm.weight": (HIDDEN,), "lm_head.weight": vocabulary}


def _attention(c: Config, bid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    types = c.get("layer_types")
    if types is not None and bid < len(types) and types[bid] == "linear_attention":
        yield from _linear_attention(c)
    elif "kv_lora_rank" in c:
        yield from _latent_attention(c, bid)
    else:
        yield from _grouped_attention(c)


def _grouped_attention(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    size, heads, kv_heads = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield f"self_attn.{part}_proj.weight", (count * size, HIDDEN)
        if c["attention_bias"]:
            yield f"self_attn.{part}_proj.bias", (count * size,)
    yield "self_attn.o_proj.weight", (HIDDEN, heads * size)
    if c["use_qk_norm"]:
        yield "self_attn.q_norm.weight", (size,)
        yield "self_attn.k_norm.weight", (size,)


def _latent_attention(c: Config, bid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, rank, nope, rope, v = (
        c[key] for key in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    q_rank = c["q_lora_rank"]
    if q_rank is None:
        yield "self_attn.q_proj.weight", (heads * (nope + rope), HIDDEN)
    else:
        yield "self_attn.q_a_proj.weight", (q_rank, HIDDEN)
        yield "self_attn.q_a_layernorm.weight", (q_rank,)
        yield "self_attn.q_b_proj.weight", (heads * (nope + rope), q_rank)
    yield "self_attn.kv_a_proj_with_mqa.weight", (rank + rope, HIDDEN)
    yield "self_attn.kv_a_layernorm.weight", (rank,)
    yield "self_attn.kv_b_proj.weight", (heads * (nope + v), rank)
    yield "self_attn.o_proj.weight", (HIDDEN, heads * v)
    types = c.get("indexer_types")
    if "index_topk" in c and (types is None or bid >= len(types) or types[bid] == "full"):
        index_heads, size = c["index_n_heads"], c["index_head_dim"]
        yield "self_attn.indexer.wq_b.weight", (index_heads * size, q_rank)
        yield "self_attn.indexer.wk.weight", (size, HIDDEN)
        yield "self_attn.indexer.weights_proj.weight", (index_heads, HIDDEN)
        yield "self_attn.indexer.k_norm.weight", (size,)
        yield "self_attn.indexer.k_norm.bias", (size,)
        if "index_kpool" in c:
            yield "self_attn.indexer.index_kpool_compress_ape", (c["index_kpool"], size)
            yield "self_attn.indexer.index_kpool_compress_gate", (size, HIDDEN)


def _linear_attention(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, size = c["linear_num_heads"], c["linear_head_dim"]
    inner = heads * size
    for part in "qkv":
        yield f"self_attn.{part}_proj.weight", (inner, HIDDEN)
        yield f"self_attn.{part}_conv1d.weight", (inner, 1, c["linear_conv_kernel_dim"])
    for part in "fg":
        yield f"self_attn.{part}_a_proj.weight", (size, HIDDEN)
        yield f"self_attn.{part}_b_proj.weight", (inner, size)
    yield "self_attn.b_proj.weight", (heads, HIDDEN)
    yield "self_attn.A_log", (1, 1, heads, 1)
    yield "self_attn.dt_bias", (inner,)
    yield "self_attn.o_norm.weight", (size,)
    yield "self_attn.o_proj.weight", (HIDDEN, inner)


def _hyper_connections(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    streams = c["hc_mult"]
    for part in ("attn", "ffn"):
        yield f"hc_{part}_fn", (streams * (streams + 2), streams * HIDDEN)
        yield f"hc_{part}_base", (streams * (streams + 2),)
        yield f"hc_{part}_scale", (3,)


def _ffn(c: Config, bid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    def gated(prefix: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{prefix}.gate_proj.weight", (width, HIDDEN)
        yield f"{prefix}.up_proj.weight", (width, HIDDEN)
        yield f"{prefix}.down_proj.weight", (HIDDEN, width)

    if bid < c["first_k_dense_replace"]:
        yield from gated("mlp", c["intermediate_size"])
        return
    yield "mlp.gate.weight", (c["n_routed_experts"], HIDDEN)
    if c.get("scoring_func") != "softmax":
        yield "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
    for expert in range(c["n_routed_experts"]):
        yield from gated(f"mlp.experts.{expert}", c["moe_intermediate_size"])
    yield from gated("mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])


# Kept in float32 by the real repositories, whatever the rest is.
_FLOAT32 = ("e_score_correction_bias", "A_log", "dt_bias", "hc_", "index_kpool_")


def tensors(name: str, dtype: Dtype) -> dict[str, Any]:
    """The checkpoint: tensor name -> values."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for tensor, shape in shapes(name).items():
        values = _values(name, tensor, shape)
        if name.endswith(("_echo", "_near")):
            values = _agreeing(tensor, values, strength=0.0 if name.endswith("_echo") else _NEAR)
        exact = any(part in tensor for part in _FLOAT32)
        found[tensor] = values.to(torch.float32 if exact else getattr(torch, dtype)).contiguous()
    return found


def _values(model: str, name: str, shape: tuple[int, ...]) -> Any:
    """Random values, exact in bfloat16, of a magnitude that fits the parameter's role."""
    import torch

    # Seeded by name, so that neither the order nor the number of parameters matters.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{model}/{name}".encode()))
    if name.endswith("A_log"):
        # The converter stores -exp(A_log) in float32; between 1 and 3 the way back is exact.
        return 1 + torch.randint(0, 128, shape, generator=generator) / 64
    if len(shape) == 1:
        steps = torch.randint(-64, 65, shape, generator=generator)
        return (steps + (128 if "norm" in name else 0)) / 128
    values = torch.randn(shape, generator=generator)
    values *= 0.5 if "embed_tokens" in name or "head" in name else shape[-1] ** -0.5
    return values.to(torch.bfloat16).float()


_NEAR = 0.1


def _agreeing(name: str, values: Any, strength: float) -> Any:
    """What makes target and draft answer alike, but for what blocks of this `strength` add.

    Their answer is then a function of the last token's embedding: the draft's projection passes its (normalised)
    embedding half on, and both final norms are the same.
    """
    import torch

    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return (values * strength).to(torch.bfloat16).float()
    if name.endswith("eh_proj.weight"):
        rest = (values[:, HIDDEN:] * strength).to(torch.bfloat16).float()
        return torch.cat((torch.eye(HIDDEN), rest), dim=1)
    if name.endswith("enorm.weight"):
        return torch.ones_like(values)
    if name.endswith(("model.norm.weight", "shared_head.norm.weight")):
        return _values("agreeing", "norm", tuple(values.shape))
    return values


_GLM_SPECIALS = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>")
_DEEPSEEK_SPECIALS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")


@cache
def _tokenizer(kind: str) -> Mapping[str, str]:
    """The tokenizer's files, by name."""
    import tempfile

    specials = _GLM_SPECIALS if kind == "glm" else _DEEPSEEK_SPECIALS
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    if kind == "deepseek":
        named = {"bos_token": specials[0], "eos_token": specials[1]}
    split = tiny_tokenizers.LLAMA3_SPLIT
    tokenizer = tiny_tokenizers._byte_level(split, specials, ignore_merges=kind == "glm", nfc=False)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tiny_tokenizers._save_fast(tokenizer, folder, **named)
        path = folder / "tokenizer_config.json"
        # Real repositories say so; transformers 5 drops the key when saving.
        path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": kind == "deepseek"}, indent=1))
        return {file.name: file.read_text() for file in sorted(folder.iterdir())}
