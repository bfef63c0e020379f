"""Config values that are computed: named functions over the header and the tensor table.

`archs/` names them (`derived("head_dim")`); each returns the value for config.json, or None to leave the key out.
"""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError
from ggufmap.mapping.resolver import block_count
from ggufmap.modeldir.rope import rope_parameters, rope_parameters_by_layer_type

_GEMMA3_PERIOD = 6  # five sliding layers, then a full one (llama.cpp src/models/gemma3.cpp, load_swa_pattern)
_GEMMA3_27B_BLOCKS = 62


def _key(checkpoint: Checkpoint, name: str) -> str:
    return f"{checkpoint.architecture}.{name}"


def _vocab_size(checkpoint: Checkpoint) -> int:
    tensor = checkpoint.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2:
        found = "absent" if tensor is None else f"of shape {tensor.shape}"
        raise FileError(f"{checkpoint.path}: token_embd.weight is {found}; a matrix (vocabulary, hidden) is needed")
    return tensor.shape[0]


def _heads(checkpoint: Checkpoint) -> int:
    heads = checkpoint.metadata.integer(_key(checkpoint, "attention.head_count"))
    if heads < 1:
        raise FileError(f"{checkpoint.path}: {_key(checkpoint, 'attention.head_count')} is {heads}")
    return heads


def _kv_heads(checkpoint: Checkpoint) -> int:
    return checkpoint.metadata.integer(_key(checkpoint, "attention.head_count_kv"), _heads(checkpoint))


def _head_dim(checkpoint: Checkpoint) -> int:
    meta = checkpoint.metadata
    if _key(checkpoint, "attention.key_length") in meta:
        return meta.integer(_key(checkpoint, "attention.key_length"))
    return meta.integer(_key(checkpoint, "embedding_length")) // _heads(checkpoint)


def _tied(checkpoint: Checkpoint) -> bool:
    return "output.weight" not in checkpoint.tensors


def _has(tensor: str) -> Callable[[Checkpoint], bool]:
    return lambda checkpoint: tensor in checkpoint.tensors


def _token(name: str) -> Callable[[Checkpoint], int | None]:
    key = f"tokenizer.ggml.{name}_token_id"
    return lambda checkpoint: checkpoint.metadata.integer(key) if key in checkpoint.metadata else None


def _full_layer_types(checkpoint: Checkpoint) -> list[JsonValue]:
    return ["full_attention"] * block_count(checkpoint)


def _gemma3_layer_types(checkpoint: Checkpoint) -> list[JsonValue]:
    """Sliding or full per layer; a header may carry the period, or the pattern itself."""
    blocks = block_count(checkpoint)
    if not checkpoint.metadata.integer(_key(checkpoint, "attention.sliding_window"), 0):
        return _full_layer_types(checkpoint)
    key = _key(checkpoint, "attention.sliding_window_pattern")
    if checkpoint.metadata.is_array(key):
        pattern = [bool(x) for x in checkpoint.metadata.numbers(key)]
        if len(pattern) != blocks:
            raise FileError(f"{checkpoint.path}: {key} has {len(pattern)} values for {blocks} blocks")
    else:
        period = checkpoint.metadata.integer(key, _GEMMA3_PERIOD)
        pattern = [period == 0 or (bid + 1) % period != 0 for bid in range(blocks)]
    return ["sliding_attention" if sliding else "full_attention" for sliding in pattern]


def _gemma3_query_scalar(checkpoint: Checkpoint) -> int:
    """The header has no such key: llama.cpp knows that only the 27B model differs from the head size."""
    if block_count(checkpoint) == _GEMMA3_27B_BLOCKS:
        return checkpoint.metadata.integer(_key(checkpoint, "embedding_length")) // _heads(checkpoint)
    return _head_dim(checkpoint)


DERIVED: dict[str, Callable[[Checkpoint], JsonValue]] = {
    "vocab_size": _vocab_size,
    "num_hidden_layers": block_count,
    "num_key_value_heads": _kv_heads,
    "head_dim": _head_dim,
    "tie_word_embeddings": _tied,
    "bos_token_id": _token("bos"),
    "eos_token_id": _token("eos"),
    "pad_token_id": _token("padding"),
    "qkv_bias": _has("blk.0.attn_q.bias"),
    "output_bias": _has("blk.0.attn_output.bias"),
    "mlp_bias": _has("blk.0.ffn_gate.bias"),
    "full_layer_types": _full_layer_types,
    "gemma3_layer_types": _gemma3_layer_types,
    "gemma3_query_scalar": _gemma3_query_scalar,
    "rope_parameters": rope_parameters,
    "rope_parameters_by_layer_type": rope_parameters_by_layer_type,
}
