"""Write a GGUF set with the real shapes of a large model: hundreds of GB apparent, a few MB on disk.

Every value is zero (holes), which is enough to audit, trace and plan. With --data the blocks hold random values, the
same ones each time: large files to load. Usage: synthesize.py MODEL FOLDER [--splits N] [--data]
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

ALIGNMENT = 32
_TYPES = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}
Tensor = tuple[str, tuple[int, ...], str]  # name, shape with rows before columns, type


@dataclass(frozen=True)
class Model:
    """What a generator writes: header keys (without the architecture prefix) and tensors in file order."""

    architecture: str
    name: str
    keys: dict[str, Any]
    tensors: list[Tensor]
    vocab: int
    pre: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Moe:
    """Shapes of a DeepSeek-like model with `blocks` trunk blocks and `nextn` draft blocks."""

    hidden: int
    blocks: int
    dense: int
    dense_ff: int
    experts: int
    expert_ff: int
    heads: int
    vocab: int
    nextn: int = 1
    q_lora: int = 0
    kv_lora: int = 0
    nope: int = 0
    rope: int = 0
    v: int = 0
    shared: int = 1
    indexers: tuple[int, ...] = ()
    indexer: tuple[int, int] = (32, 128)


def _mla(m: Moe, p: str) -> Iterator[Tensor]:
    yield p + "attn_norm.weight", (m.hidden,), "F32"
    yield p + "ffn_norm.weight", (m.hidden,), "F32"
    yield p + "attn_q_a.weight", (m.q_lora, m.hidden), "Q4_K"
    yield p + "attn_q_a_norm.weight", (m.q_lora,), "F32"
    yield p + "attn_q_b.weight", (m.heads * (m.nope + m.rope), m.q_lora), "Q4_K"
    yield p + "attn_kv_a_mqa.weight", (m.kv_lora + m.rope, m.hidden), "Q8_0"
    yield p + "attn_kv_a_norm.weight", (m.kv_lora,), "F32"
    yield p + "attn_k_b.weight", (m.heads, m.kv_lora, m.nope), "Q8_0"
    yield p + "attn_v_b.weight", (m.heads, m.v, m.kv_lora), "Q8_0"
    yield p + "attn_output.weight", (m.hidden, m.heads * m.v), "Q8_0"


def _indexer(m: Moe, p: str) -> Iterator[Tensor]:
    heads, size = m.indexer
    yield p + "indexer.attn_q_b.weight", (heads * size, m.q_lora), "Q8_0"
    yield p + "indexer.attn_k.weight", (size, m.hidden), "Q8_0"
    yield p + "indexer.proj.weight", (heads, m.hidden), "F32"
    yield p + "indexer.k_norm.weight", (size,), "F32"
    yield p + "indexer.k_norm.bias", (size,), "F32"


def _ffn(m: Moe, p: str, dense: bool, bias: bool = True) -> Iterator[Tensor]:
    if dense:
        yield p + "ffn_gate.weight", (m.dense_ff, m.hidden), "Q4_K"
        yield p + "ffn_up.weight", (m.dense_ff, m.hidden), "Q4_K"
        yield p + "ffn_down.weight", (m.hidden, m.dense_ff), "Q6_K"
        return
    yield p + "ffn_gate_inp.weight", (m.experts, m.hidden), "F32"
    if bias:
        yield p + "exp_probs_b.bias", (m.experts,), "F32"
    yield p + "ffn_gate_exps.weight", (m.experts, m.expert_ff, m.hidden), "Q4_K"
    yield p + "ffn_up_exps.weight", (m.experts, m.expert_ff, m.hidden), "Q4_K"
    yield p + "ffn_down_exps.weight", (m.experts, m.hidden, m.expert_ff), "Q4_K"
    width = m.expert_ff * m.shared
    yield p + "ffn_gate_shexp.weight", (width, m.hidden), "Q8_0"
    yield p + "ffn_up_shexp.weight", (width, m.hidden), "Q8_0"
    yield p + "ffn_down_shexp.weight", (m.hidden, width), "Q8_0"


def _nextn(m: Moe, p: str, own: bool) -> Iterator[Tensor]:
    yield p + "nextn.eh_proj.weight", (m.hidden, 2 * m.hidden), "Q8_0"
    yield p + "nextn.enorm.weight", (m.hidden,), "F32"
    yield p + "nextn.hnorm.weight", (m.hidden,), "F32"
    yield p + "nextn.shared_head_norm.weight", (m.hidden,), "F32"
    if own:
        yield p + "nextn.embed_tokens.weight", (m.vocab, m.hidden), "Q4_K"
        yield p + "nextn.shared_head_head.weight", (m.vocab, m.hidden), "Q6_K"


def _ends(m: Moe) -> Iterator[Tensor]:
    yield "token_embd.weight", (m.vocab, m.hidden), "Q4_K"
    yield "output.weight", (m.vocab, m.hidden), "Q6_K"
    yield "output_norm.weight", (m.hidden,), "F32"


def _decoder(m: Moe, attention: Callable[[Moe, str], Iterator[Tensor]], own_head: bool = False) -> list[Tensor]:
    tensors = list(_ends(m))
    for bid in range(m.blocks + m.nextn):
        p = f"blk.{bid}."
        tensors += attention(m, p)
        if bid in m.indexers:
            tensors += _indexer(m, p)
        tensors += _ffn(m, p, bid < m.dense)
        if bid >= m.blocks:
            tensors += _nextn(m, p, own_head)
    return tensors


def _moe_keys(m: Moe, **more: Any) -> dict[str, Any]:
    return {
        "block_count": m.blocks + m.nextn,
        "embedding_length": m.hidden,
        "feed_forward_length": m.dense_ff,
        "attention.head_count": m.heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "expert_count": m.experts,
        "expert_used_count": 8,
        "expert_shared_count": m.shared,
        "expert_feed_forward_length": m.expert_ff,
        "leading_dense_block_count": m.dense,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "vocab_size": m.vocab,
        "nextn_predict_layers": m.nextn,
        **more,
    }


def _mla_keys(m: Moe, **more: Any) -> dict[str, Any]:
    return _moe_keys(
        m,
        **{
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": m.q_lora,
            "attention.kv_lora_rank": m.kv_lora,
            "attention.key_length": m.kv_lora + m.rope,
            "attention.value_length": m.kv_lora,
            "attention.key_length_mla": m.nope + m.rope,
            "attention.value_length_mla": m.v,
            "rope.dimension_count": m.rope,
            **more,
        },
    )


def _indexer_keys(m: Moe) -> dict[str, Any]:
    heads, size = m.indexer
    return {
        "attention.indexer.head_count": heads,
        "attention.indexer.key_length": size,
        "attention.indexer.top_k": 2048,
    }


_GLM5: dict[str, int] = {
    "hidden": 6144,
    "blocks": 78,
    "dense": 3,
    "dense_ff": 12288,
    "experts": 256,
    "expert_ff": 2048,
    "heads": 64,
    "vocab": 154880,
    "q_lora": 2048,
    "kv_lora": 512,
    "nope": 192,
    "rope": 64,
    "v": 256,
}


def glm_5() -> Model:
    """GLM-5: 1809 tensors, 402 GiB, every block with its own indexer."""
    m = Moe(**_GLM5, indexers=tuple(range(79)))
    keys = _mla_keys(m, **_indexer_keys(m), **{"context_length": 202752, "rope.freq_base": 1e6})
    return Model("glm-dsa", "GLM-5", keys, _decoder(m, _mla), m.vocab, "glm4")


def _full_blocks() -> tuple[int, ...]:
    return (*(bid for bid in range(78) if max(bid - 2, 0) % 4 == 0), 78)


def glm_5_2(extra_indexers: bool = False) -> Model:
    """GLM-5.2: 21 of 78 blocks and the draft run an indexer; `extra_indexers` repeats it in every block."""
    m = Moe(**_GLM5, indexers=tuple(range(79)) if extra_indexers else _full_blocks())
    keys = _mla_keys(m, **_indexer_keys(m), **{"context_length": 1048576, "rope.freq_base": 8e6})
    if not extra_indexers:
        keys["attention.indexer.types"] = [bid in _full_blocks() for bid in range(78)]
    return Model("glm-dsa", "GLM-5.2", keys, _decoder(m, _mla), m.vocab, "glm4")


def deepseek_v3() -> Model:
    """DeepSeek-V3 with its MTP block."""
    m = Moe(
        hidden=7168, blocks=61, dense=3, dense_ff=18432, experts=256, expert_ff=2048, heads=128, vocab=129280,
        q_lora=1536, kv_lora=512, nope=128, rope=64, v=128,
    )  # fmt: skip
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.yarn_log_multiplier": 0.1,
        "expert_group_count": 8,
        "expert_group_used_count": 4,
    }
    keys = _mla_keys(m, **{"context_length": 163840, "rope.freq_base": 10000.0, **yarn})
    return Model("deepseek2", "DeepSeek-V3", keys, _decoder(m, _mla), m.vocab, "deepseek-v3")


def _gqa(m: Moe, p: str) -> Iterator[Tensor]:
    size, kv = 128, 8
    yield p + "attn_norm.weight", (m.hidden,), "F32"
    yield p + "post_attention_norm.weight", (m.hidden,), "F32"
    for name, rows in (("attn_q", m.heads * size), ("attn_k", kv * size), ("attn_v", kv * size)):
        yield f"{p}{name}.weight", (rows, m.hidden), "Q4_K"
        yield f"{p}{name}.bias", (rows,), "F32"
    yield p + "attn_output.weight", (m.hidden, m.heads * size), "Q4_K"


def glm_4_5_air() -> Model:
    """GLM-4.5-Air: grouped-query attention, a draft with its own embedding and head."""
    m = Moe(
        hidden=4096, blocks=46, dense=1, dense_ff=10944, experts=128, expert_ff=1408, heads=96, vocab=151552
    )  # fmt: skip
    keys = _moe_keys(
        m,
        **{
            "context_length": 131072,
            "attention.head_count_kv": 8,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.dimension_count": 64,
            "rope.freq_base": 1e6,
            "expert_weights_scale": 1.0,
        },
    )
    tensors = [(n, s, "Q8_0" if s[-1] % 256 and t in ("Q4_K", "Q6_K") else t) for n, s, t in _decoder(m, _gqa, True)]
    return Model("glm4moe", "GLM-4.5-Air", keys, tensors, m.vocab, "glm4")


def _kda(m: Moe, p: str) -> Iterator[Tensor]:
    size = m.heads * 128
    yield p + "attn_norm.weight", (m.hidden,), "F32"
    yield p + "ffn_norm.weight", (m.hidden,), "F32"
    for x in "qkv":
        yield f"{p}attn_{x}.weight", (size, m.hidden), "Q4_K"
        yield f"{p}ssm_conv1d_{x}.weight", (1, size, 1, 4), "F32"
    for x in "fg":
        yield f"{p}ssm_{x}_a.weight", (128, m.hidden), "Q8_0"
        yield f"{p}ssm_{x}_b.weight", (size, 128), "Q8_0"
    yield p + "ssm_beta.weight", (m.heads, m.hidden), "Q8_0"
    yield p + "ssm_a", (m.heads,), "F32"
    yield p + "ssm_dt.bias", (size,), "F32"
    yield p + "ssm_norm.weight", (128,), "F32"
    yield p + "attn_output.weight", (m.hidden, size), "Q4_K"


def _glm53_block(m: Moe, p: str) -> Iterator[Tensor]:
    bid = int(p.split(".")[1])
    if bid in m.indexers:
        yield from _mla(m, p)
        yield p + "indexer_compressor_ape.weight", (16, 128), "F32"
        yield p + "indexer_compressor_gate.weight", (128, m.hidden), "F32"
    else:
        yield from _kda(m, p)
    if bid < m.blocks:
        for part in ("attn", "ffn"):
            yield f"{p}hc_{part}_fn.weight", (24, 4 * m.hidden), "F32"
            yield f"{p}hc_{part}_base.weight", (24,), "F32"
            yield f"{p}hc_{part}_scale.weight", (3,), "F32"


def glm_5_3_flash() -> Model:
    """GLM-5.3-Flash: linear attention in three of four blocks, hyper-connections, pooled indexer."""
    sparse = (*range(3, 45, 4), 45)
    m = Moe(
        hidden=4096, blocks=45, dense=3, dense_ff=12288, experts=288, expert_ff=2048, heads=64, vocab=154880,
        q_lora=1536, kv_lora=512, nope=256, rope=0, v=256, indexers=sparse,
    )  # fmt: skip
    keys = _mla_keys(
        m,
        **_indexer_keys(m),
        **{
            "context_length": 1048576,
            "rope.freq_base": 8e6,
            "attention.head_count_kv": [int(bid in sparse) for bid in range(46)],
            "ssm.conv_kernel": 4,
            "kda.head_dim": 128,
            "kda.gate_lower_bound": -5.0,
            "attention.indexer.kpool": 16,
            "attention.indexer.kpool_select_tail": True,
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 20,
            "hyper_connection.epsilon": 1e-6,
            "swiglu_clamp_exp": [10.0] * 46,
            "swiglu_clamp_shexp": [10.0] * 46,
        },
    )
    return Model("glm5-next", "GLM-5.3-Flash", keys, _decoder(m, _glm53_block), m.vocab, "glm4")


def qwen3_moe(blocks: int) -> Model:
    """Qwen3-30B-A3B cut to `blocks` blocks of 345 MB (1.22 GB in bfloat16), with a small vocabulary."""
    hidden, heads, kv, size, experts, ff, vocab = 2048, 32, 4, 128, 128, 768, 4096
    tensors: list[Tensor] = [
        ("token_embd.weight", (vocab, hidden), "Q4_K"),
        ("output.weight", (vocab, hidden), "Q6_K"),
        ("output_norm.weight", (hidden,), "F32"),
    ]
    for bid in range(blocks):
        p = f"blk.{bid}."
        tensors += [
            (p + "attn_norm.weight", (hidden,), "F32"),
            (p + "attn_q.weight", (heads * size, hidden), "Q4_K"),
            (p + "attn_k.weight", (kv * size, hidden), "Q4_K"),
            (p + "attn_v.weight", (kv * size, hidden), "Q6_K"),
            (p + "attn_q_norm.weight", (size,), "F32"),
            (p + "attn_k_norm.weight", (size,), "F32"),
            (p + "attn_output.weight", (hidden, heads * size), "Q4_K"),
            (p + "ffn_norm.weight", (hidden,), "F32"),
            (p + "ffn_gate_inp.weight", (experts, hidden), "F32"),
            (p + "ffn_gate_exps.weight", (experts, ff, hidden), "Q4_K"),
            (p + "ffn_up_exps.weight", (experts, ff, hidden), "Q4_K"),
            (p + "ffn_down_exps.weight", (experts, hidden, ff), "Q4_K"),
        ]
    keys = {
        "block_count": blocks,
        "context_length": 4096,
        "embedding_length": hidden,
        "feed_forward_length": 6144,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "expert_count": experts,
        "expert_used_count": 8,
        "expert_feed_forward_length": ff,
        "vocab_size": vocab,
    }
    tokens = ["t", "o", "to", *(f"token{i}" for i in range(3, vocab))]
    extra = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["t o"]}
    return Model("qwen3moe", f"Qwen3-MoE-{blocks}", keys, tensors, vocab, "qwen2", extra)


MODELS: dict[str, Callable[[], Model]] = {
    **{f"qwen3-moe-{blocks}": partial(qwen3_moe, blocks) for blocks in (1, 3, 6, 12, 24)},
    "glm-5": glm_5,
    "glm-5.2": glm_5_2,
    "glm-5.2-extra-indexers": lambda: glm_5_2(extra_indexers=True),
    "glm-4.5-air": glm_4_5_air,
    "deepseek-v3": deepseek_v3,
    "glm-5.3-flash": glm_5_3_flash,
}


def write(model: Model, folder: Path, splits: int = 1, data: bool = False) -> list[Path]:
    """Write `model` as `splits` files of about equal size, sparse ones unless with `data`. Their paths, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [_nbytes(shape, type) for _, shape, type in model.tensors]
    share, groups, used = sum(sizes) / splits, [[] for _ in range(splits)], 0
    for tensor, size in zip(model.tensors, sizes, strict=True):
        groups[min(int(used / share), splits - 1)].append(tensor)
        used += size
    paths = []
    for no, group in enumerate(groups):
        suffix = f"-{no + 1:05d}-of-{splits:05d}" if splits > 1 else ""
        paths.append(folder / f"{model.name}{suffix}.gguf")
        _write_file(paths[-1], _metadata(model, no, splits), group, data)
    return paths


def _metadata(model: Model, no: int, splits: int) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if no == 0:
        meta = {"general.architecture": model.architecture, "general.name": model.name}
        meta.update({f"{model.architecture}.{key}": value for key, value in model.keys.items()})
        meta["tokenizer.ggml.model"] = "gpt2"
        meta["tokenizer.ggml.pre"] = model.pre
        meta["tokenizer.ggml.tokens"] = [f"token{i}" for i in range(model.vocab)]
        meta.update(model.extra)
    if splits > 1:
        meta.update({"split.no": no, "split.count": splits, "split.tensors.count": len(model.tensors)})
    return meta


def _nbytes(shape: tuple[int, ...], type: str) -> int:
    _, block, size = _TYPES[type]
    total = 1
    for n in shape:
        total *= n
    assert shape[-1] % block == 0, (shape, type)
    return total // block * size


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> tuple[int, bytes]:
    """(GGUF value type, bytes) of a Python value."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    parts = [_value(item) for item in value]
    return 9, struct.pack("<IQ", parts[0][0], len(parts)) + b"".join(raw for _, raw in parts)


def _pad(size: int) -> int:
    return -size % ALIGNMENT


# Where the half-precision scales of a block are; all its other bytes may be anything.
_SCALES = {"Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}
_AT_ONCE = 1 << 20  # blocks


def _write_data(file: BinaryIO, shape: tuple[int, ...], type: str, seed: int) -> None:
    """Random blocks whose scales are between 0.001 and 0.002, and random numbers around zero."""
    generator = np.random.default_rng(seed)
    _, block, size = _TYPES[type]
    left = int(np.prod(shape)) // block
    while left:
        count = min(left, _AT_ONCE)
        left -= count
        if type in _SCALES:
            blocks = generator.integers(0, 256, (count, size), dtype=np.uint8)
            for start in _SCALES[type]:
                scales = generator.uniform(0.001, 0.002, count).astype("<f2")
                blocks[:, start : start + 2] = scales.view(np.uint8).reshape(count, 2)
        else:
            values = generator.standard_normal(count, dtype=np.float32).view("<u4")
            blocks = values if type == "F32" else (values >> 16).astype("<u2")  # BF16 is the upper half
        file.write(blocks.tobytes())


def _write_file(path: Path, metadata: dict[str, Any], tensors: list[Tensor], data: bool) -> None:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        kind, raw = _value(value)
        out += _string(key) + struct.pack("<I", kind) + raw
    offset = 0
    for name, shape, type in tensors:
        out += _string(name) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        out += struct.pack("<IQ", _TYPES[type][0], offset)
        offset += _nbytes(shape, type)
        offset += _pad(offset)
    out += bytes(_pad(len(out)))
    with path.open("wb") as file:
        file.write(out)
        for index, (_, shape, type) in enumerate(tensors if data else ()):
            _write_data(file, shape, type, index)
            file.write(bytes(_pad(file.tell())))
        file.truncate(len(out) + offset)  # a hole: reads as zeros, takes no space


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--data", action="store_true", help="random values instead of holes")
    args = parser.parse_args()
    paths = write(MODELS[args.model](), args.folder, args.splits, args.data)
    apparent = sum(path.stat().st_size for path in paths)
    on_disk = sum(path.stat().st_blocks * 512 for path in paths)
    print(f"{len(paths)} files, {apparent / 1e9:.1f} GB apparent, {on_disk / 1e6:.1f} MB on disk")
    print(paths[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
