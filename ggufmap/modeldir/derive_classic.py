"""Config values of the dense families from GPT-2 to Gemma 2: sliding patterns, flags that tensors or numbers tell."""

from __future__ import annotations

import math
from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout

_GEMMA2_27B_BLOCKS = 46


def _number(blocks: Layout, key: str, default: float | None = None) -> float:
    value: float = blocks.checkpoint.metadata.number(f"{blocks.checkpoint.architecture}.{key}", default)
    return value


def sliding_layer_types(period: int) -> Callable[[Layout], JsonValue]:
    """Sliding or full per layer: the header's list or period, else the last of `period` layers is a full one.

    Source: llama.cpp 0c1e57098 src/llama-model-loader, load_swa_pattern.
    """

    def of(blocks: Layout) -> JsonValue:
        metadata, key = blocks.checkpoint.metadata, f"{blocks.checkpoint.architecture}.attention.sliding_window_pattern"
        if not blocks.integer("attention.sliding_window", 0):
            sliding = [False for _ in blocks.trunk]
        elif metadata.is_array(key):
            sliding = [bool(x) for x in metadata.numbers(key)][: len(blocks.trunk)]
            if len(sliding) != len(blocks.trunk):
                raise FileError(
                    f"{blocks.checkpoint.path}: {key} has {len(sliding)} values, {len(blocks.trunk)} needed"
                )
        else:
            every = metadata.integer(key, period)
            sliding = [every == 0 or (bid + 1) % every != 0 for bid in blocks.trunk]
        return ["sliding_attention" if x else "full_attention" for x in sliding]

    return of


def _gemma2_query_scalar(blocks: Layout) -> int:
    """No key in the header: llama.cpp src/models/gemma2.cpp knows that the 27B model differs from the head size."""
    heads = max(blocks.integer("attention.head_count"), 1)
    if len(blocks.trunk) == _GEMMA2_27B_BLOCKS:
        return blocks.integer("embedding_length") // heads
    return blocks.integer("attention.key_length", blocks.integer("embedding_length") // heads)


def _holds(tensor: str) -> Callable[[Layout], JsonValue]:
    return lambda blocks: tensor in blocks.checkpoint.tensors


def _parallel_residual(blocks: Layout) -> bool:
    return blocks.checkpoint.metadata.boolean(f"{blocks.checkpoint.architecture}.use_parallel_residual", False)


def _sliding_window(blocks: Layout) -> int | None:
    """None where the header says 0: Phi-4 is told from Phi-3 that way (conversion/phi.py)."""
    return blocks.integer("attention.sliding_window", 0) or None


def _scale_depth(blocks: Layout) -> float:
    """The header has it over the square root of the block count; 1.4 in files from before (src/models/minicpm.cpp)."""
    if not blocks.has("residual_scale"):
        return 1.4
    return round(_number(blocks, "residual_scale") * math.sqrt(len(blocks.trunk)), 6)


def _dim_base(blocks: Layout) -> int:
    """The width that the head was tuned at: the header has the hidden size over it, older files nothing (256)."""
    if not blocks.has("logit_scale"):
        return 256
    scale = _number(blocks, "logit_scale")
    if scale <= 0:
        raise FileError(f"{blocks.checkpoint.path}: {blocks.checkpoint.architecture}.logit_scale is {scale}")
    return round(blocks.integer("embedding_length") / scale)


def _kv_b_value_dim(blocks: Layout) -> int:
    """Value size per head: what kv_b has beside the keys' part without RoPE."""
    tensor, heads = blocks.checkpoint.tensors.get("blk.0.attn_kv_b.weight"), blocks.integer("attention.head_count")
    nope = blocks.integer("attention.key_length") - blocks.integer("rope.dimension_count")
    size = tensor.shape[0] // heads - nope if tensor is not None and heads > 0 else 0
    if size < 1:
        raise FileError(f"{blocks.checkpoint.path}: blk.0.attn_kv_b.weight does not say the size of a value")
    return size


def _grouped_query(blocks: Layout) -> bool:
    heads = blocks.integer("attention.head_count")
    return blocks.integer("attention.head_count_kv", heads) != heads


def _grouped_falcon(blocks: Layout) -> bool:
    """Falcon's new decoder is the one with several key-value heads (conversion/falcon.py)."""
    return blocks.integer("attention.head_count_kv", 1) != 1


def _falcon_norms(blocks: Layout) -> int | None:
    """The new decoder has two norms, but for the 11B model; the old decoder has no such key."""
    if not _grouped_falcon(blocks):
        return None
    return 2 if "blk.0.attn_norm_2.weight" in blocks.checkpoint.tensors else 1


DERIVED_CLASSIC: dict[str, Callable[[Layout], JsonValue]] = {
    "sliding_layer_types_2": sliding_layer_types(2),
    "sliding_layer_types_4": sliding_layer_types(4),
    "sliding_layer_types_5": sliding_layer_types(5),
    "sliding_layer_types_6": sliding_layer_types(6),
    "gemma2_query_scalar": _gemma2_query_scalar,
    "sliding_window_or_none": _sliding_window,
    "parallel_residual": _parallel_residual,
    "ffn_bias": _holds("blk.0.ffn_up.bias"),
    "falcon_new_decoder": _grouped_falcon,
    "falcon_multi_query": lambda blocks: not _grouped_falcon(blocks),
    "falcon_norms": _falcon_norms,
    "fused_qkv_bias": _holds("blk.0.attn_qkv.bias"),
    "grouped_query": _grouped_query,
    "minicpm_scale_emb": lambda blocks: _number(blocks, "embedding_scale", 12.0),
    "minicpm_scale_depth": _scale_depth,
    "minicpm_dim_base": _dim_base,
    "kv_b_value_dim": _kv_b_value_dim,
    "rope_ratio": lambda blocks: _number(blocks, "rope.freq_base", 10_000.0) / 10_000,
}
