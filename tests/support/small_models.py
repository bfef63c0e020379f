"""Small hand-written GGUF files that map without a fault, made to be spoilt: a Llama with every required tensor.

`write_llama(path)` is a good file. Metadata is a dict and tensors a list, so that a test changes what it is about:

    write_llama(path, metadata=llama_metadata() | {"llama.block_count": (UINT32, 9)})
    write_llama(path, tensors=[t for t in llama_tensors() if t.name != "output_norm.weight"])
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support import gguf_bytes as gb
from support.gguf_bytes import FLOAT32, STRING, UINT32, TensorSpec

HIDDEN, HEADS, KV_HEADS, FEED, VOCAB = 64, 4, 2, 128, 48
HEAD = HIDDEN // HEADS

Metadata = dict[str, tuple[int, Any]]


def llama_metadata(blocks: int = 2) -> Metadata:
    """What a Llama header needs to be mapped (no tokenizer)."""
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "small"),
        "llama.block_count": (UINT32, blocks),
        "llama.context_length": (UINT32, 128),
        "llama.embedding_length": (UINT32, HIDDEN),
        "llama.feed_forward_length": (UINT32, FEED),
        "llama.attention.head_count": (UINT32, HEADS),
        "llama.attention.head_count_kv": (UINT32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "llama.rope.freq_base": (FLOAT32, 20000.0),
    }


def tensor(name: str, *shape: int, ggml_type: int = gb.F32, **overrides: Any) -> TensorSpec:
    """A tensor with `shape` in numpy order (rows before columns) and, for F32, random values fixed by its name."""
    data = None
    if ggml_type == gb.F32:
        data = values(name, *shape).tobytes()
    return TensorSpec(name, tuple(reversed(shape)), ggml_type, **{"data": data, **overrides})


def values(name: str, *shape: int) -> Any:
    """The values that `tensor` writes."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype=np.float32)


def block_tensors(bid: int) -> list[TensorSpec]:
    """The tensors of one block."""
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * HEAD, HIDDEN),
        "attn_v": (KV_HEADS * HEAD, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FEED, HIDDEN),
        "ffn_up": (FEED, HIDDEN),
        "ffn_down": (HIDDEN, FEED),
    }
    return [tensor(f"blk.{bid}.{name}.weight", *shape) for name, shape in shapes.items()]


def llama_tensors(blocks: int = 2, *, tied: bool = False) -> list[TensorSpec]:
    """Every tensor of the model, in the order that converters write."""
    top = [tensor("token_embd.weight", VOCAB, HIDDEN)]
    middle = [one for bid in range(blocks) for one in block_tensors(bid)]
    end = [tensor("output_norm.weight", HIDDEN)]
    return top + middle + end + ([] if tied else [tensor("output.weight", VOCAB, HIDDEN)])


def replaced(tensors: Sequence[TensorSpec], *new: TensorSpec) -> list[TensorSpec]:
    """`tensors` with those of the same names replaced."""
    by_name = {spec.name: spec for spec in new}
    return [by_name.get(spec.name, spec) for spec in tensors]


def without(tensors: Sequence[TensorSpec], *names: str) -> list[TensorSpec]:
    """`tensors` without those names."""
    return [spec for spec in tensors if spec.name not in names]


def encode(metadata: Mapping[str, tuple[int, Any]], tensors: Sequence[TensorSpec], **build: Any) -> bytes:
    """The file's bytes."""
    return gb.build([(key, kind, content) for key, (kind, content) in metadata.items()], tensors, **build)


def write(path: Path, metadata: Mapping[str, tuple[int, Any]], tensors: Sequence[TensorSpec], **build: Any) -> Path:
    """Write a file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(metadata, tensors, **build))
    return path


def write_llama(
    path: Path,
    metadata: Mapping[str, tuple[int, Any]] | None = None,
    tensors: Sequence[TensorSpec] | None = None,
    **build: Any,
) -> Path:
    """Write a Llama, the good one unless told otherwise."""
    return write(
        path,
        llama_metadata() if metadata is None else metadata,
        llama_tensors() if tensors is None else tensors,
        **build,
    )


def write_splits(
    folder: Path,
    parts: Sequence[Sequence[TensorSpec]],
    *,
    stem: str = "m",
    width: int = 5,
    changes: Mapping[int, Metadata] | None = None,
) -> list[Path]:
    """A split set: the first file has the model's metadata, each has its `split.*` keys.

    `changes` override keys by the index of the file.
    """
    total = sum(len(part) for part in parts)
    paths = []
    for index, part in enumerate(parts):
        keys: Metadata = {
            "split.no": (gb.UINT16, index),
            "split.count": (gb.UINT16, len(parts)),
            "split.tensors.count": (gb.INT32, total),
        }
        first = llama_metadata() if index == 0 else {}
        name = f"{stem}-{index + 1:0{width}d}-of-{len(parts):0{width}d}.gguf"
        paths.append(write(folder / name, first | keys | (changes or {}).get(index, {}), part))
    return paths
