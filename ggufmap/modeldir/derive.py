"""Config values that are computed: named functions over the header and the tensor table.

`archs/` names them (`derived("head_dim")`); each returns the value for config.json, or None to leave the key out.
"""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.derive_classic import DERIVED_CLASSIC
from ggufmap.modeldir.derive_experts import DERIVED_EXPERTS
from ggufmap.modeldir.derive_gemma_n import DERIVED_GEMMA_N
from ggufmap.modeldir.derive_longrope import DERIVED_LONGROPE
from ggufmap.modeldir.derive_moe_new import DERIVED_MOE_NEW
from ggufmap.modeldir.derive_single import DERIVED_SINGLE
from ggufmap.modeldir.derive_ssm import DERIVED_SSM
from ggufmap.modeldir.derive_vision import DERIVED_VISION
from ggufmap.modeldir.rope import mla_rope_parameters, rope_parameters, rope_parameters_by_layer_type

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


def _full_layer_types(blocks: Layout) -> list[JsonValue]:
    return ["full_attention"] * len(blocks.trunk)


def _gemma3_layer_types(blocks: Layout) -> list[JsonValue]:
    """Sliding or full per layer; a header may carry the period, or the pattern itself."""
    checkpoint = blocks.checkpoint
    if not blocks.integer("attention.sliding_window", 0):
        return _full_layer_types(blocks)
    key = _key(checkpoint, "attention.sliding_window_pattern")
    if checkpoint.metadata.is_array(key):
        pattern = [bool(x) for x in checkpoint.metadata.numbers(key)]
        if len(pattern) != len(blocks.trunk):
            raise FileError(f"{checkpoint.path}: {key} has {len(pattern)} values for {len(blocks.trunk)} blocks")
    else:
        period = checkpoint.metadata.integer(key, _GEMMA3_PERIOD)
        pattern = [period == 0 or (bid + 1) % period != 0 for bid in blocks.trunk]
    return ["sliding_attention" if sliding else "full_attention" for sliding in pattern]


def _gemma3_query_scalar(blocks: Layout) -> int:
    """The header has no such key: llama.cpp knows that only the 27B model differs from the head size."""
    if len(blocks.trunk) == _GEMMA3_27B_BLOCKS:
        return blocks.integer("embedding_length") // _heads(blocks.checkpoint)
    return _head_dim(blocks.checkpoint)


def _qk_head_dim(blocks: Layout) -> int:
    """MLA's query and key size. Absorbed files store the latent sizes under the plain keys (cases: 576 and 512)."""
    if blocks.has("attention.key_length_mla"):
        return blocks.integer("attention.key_length_mla")
    return blocks.integer("attention.key_length")


def _v_head_dim(blocks: Layout) -> int:
    if blocks.has("attention.value_length_mla"):
        return blocks.integer("attention.value_length_mla")
    return blocks.integer("attention.value_length")


def _qk_nope_head_dim(blocks: Layout) -> int:
    nope = _qk_head_dim(blocks) - blocks.integer("rope.dimension_count")
    if nope < 1:
        raise FileError(f"{blocks.checkpoint.path}: key length {_qk_head_dim(blocks)} leaves no part without RoPE")
    return nope


def _router_bias(blocks: Layout) -> bool:
    return any(name.endswith("exp_probs_b.bias") for name in blocks.checkpoint.tensors)


def _gating(blocks: Layout) -> int:
    """The header's word, else softmax (1) or, by the router's bias, sigmoid (2)."""
    return blocks.integer("expert_gating_func", 2 if _router_bias(blocks) else 1)


def _scoring_func(*more: tuple[int, str]) -> Callable[[Layout], str]:
    """The name of the gating function; `more` than two are for classes that compute what they are told."""
    functions = dict(((1, "softmax"), (2, "sigmoid"), *more))

    def scoring_func(blocks: Layout) -> str:
        declared = _gating(blocks)
        if declared not in functions:
            raise FileError(f"{blocks.checkpoint.path}: expert_gating_func is {declared}, known are {functions}")
        return functions[declared]

    return scoring_func


def _norm_topk_prob(blocks: Layout) -> bool:
    """Written by converters only where true; sigmoid routers all have it."""
    key = _key(blocks.checkpoint, "expert_weights_norm")
    return blocks.checkpoint.metadata.boolean(key, _gating(blocks) == 2)


def _expert_groups(blocks: Layout) -> tuple[int, int]:
    """Groups and groups used. Files from before the keys: DeepSeek V3 (256 experts, biased) and V2 (160) by size."""
    declared = blocks.integer("expert_group_count", 0), blocks.integer("expert_group_used_count", 0)
    if all(declared):
        return declared
    known = {(256, 61): (8, 4), (160, 60): (8, 3)}
    return known.get((blocks.integer("expert_count", 0), len(blocks.trunk)), (1, 1))


def _topk_method(blocks: Layout) -> str:
    """DeepSeek's names: biased routers are `noaux_tc`, V2's are greedy, in groups or not."""
    if _router_bias(blocks):
        return "noaux_tc"
    return "group_limited_greedy" if _expert_groups(blocks)[0] > 1 else "greedy"


def _index_topk_pattern(blocks: Layout) -> str:
    """One letter per trunk block: F runs its own indexer, S shares the last one's."""
    return "".join("F" if bid in blocks.full_indexer else "S" for bid in blocks.trunk)


def _indexer_types(blocks: Layout) -> list[JsonValue]:
    return ["full" if bid in blocks.full_indexer else "shared" for bid in blocks.trunk]


def _linear_layer_types(blocks: Layout) -> list[JsonValue]:
    return ["linear_attention" if bid in blocks.linear else "indexed_attention" for bid in blocks.trunk]


def _mlp_layer_types(blocks: Layout) -> list[JsonValue]:
    return ["dense" if bid < blocks.leading_dense else "sparse" for bid in blocks.trunk]


def _linear_attn_config(blocks: Layout) -> dict[str, JsonValue]:
    """Kimi delta attention's own dictionary, as the original config has it."""
    config: dict[str, JsonValue] = {
        "kda_layers": [bid for bid in blocks.trunk if bid in blocks.linear],
        "full_attn_layers": [bid for bid in blocks.trunk if bid not in blocks.linear],
        "head_dim": blocks.integer("kda.head_dim"),
        "num_heads": _heads(blocks.checkpoint),
        "short_conv_kernel_size": blocks.integer("ssm.conv_kernel"),
    }
    if blocks.has("kda.gate_lower_bound"):
        config["gate_lower_bound"] = blocks.checkpoint.metadata.number(_key(blocks.checkpoint, "kda.gate_lower_bound"))
    return config


def _select_tail(blocks: Layout) -> bool:
    return blocks.checkpoint.metadata.boolean(_key(blocks.checkpoint, "attention.indexer.kpool_select_tail"), True)


def _swiglu_limit(blocks: Layout) -> float | None:
    """One limit for all blocks; the header has it per block."""
    key = _key(blocks.checkpoint, "swiglu_clamp_exp")
    if key not in blocks.checkpoint.metadata:
        return None
    limits = {float(str(x)) for x in blocks.checkpoint.metadata.numbers(key)}
    if len(limits) != 1:
        raise FileError(f"{blocks.checkpoint.path}: {key} differs between blocks ({sorted(limits)}); vLLM takes one")
    return limits.pop()


_Checkpoint = Callable[[Checkpoint], JsonValue]
_Layout = Callable[[Layout], JsonValue]


def _of_checkpoint(function: _Checkpoint) -> _Layout:
    return lambda blocks: function(blocks.checkpoint)


DERIVED: dict[str, _Layout] = {
    **DERIVED_SSM,
    "vocab_size": _of_checkpoint(_vocab_size),
    "num_hidden_layers": lambda blocks: len(blocks.trunk),
    "num_nextn_predict_layers": lambda blocks: len(blocks.draft),
    "num_key_value_heads": _of_checkpoint(_kv_heads),
    "head_dim": _of_checkpoint(_head_dim),
    "tie_word_embeddings": _of_checkpoint(_tied),
    "bos_token_id": _of_checkpoint(_token("bos")),
    "eos_token_id": _of_checkpoint(_token("eos")),
    "pad_token_id": _of_checkpoint(_token("padding")),
    "qkv_bias": _of_checkpoint(_has("blk.0.attn_q.bias")),
    "output_bias": _of_checkpoint(_has("blk.0.attn_output.bias")),
    "mlp_bias": _of_checkpoint(_has("blk.0.ffn_gate.bias")),
    "qk_norm": _of_checkpoint(_has("blk.0.attn_q_norm.weight")),
    "full_layer_types": _full_layer_types,
    "gemma3_layer_types": _gemma3_layer_types,
    "gemma3_query_scalar": _gemma3_query_scalar,
    "rope_parameters": _of_checkpoint(rope_parameters),
    "rope_parameters_by_layer_type": _of_checkpoint(rope_parameters_by_layer_type),
    "mla_rope_parameters": _of_checkpoint(mla_rope_parameters),
    "qk_nope_head_dim": _qk_nope_head_dim,
    "qk_rope_head_dim": lambda blocks: blocks.integer("rope.dimension_count"),
    "v_head_dim": _v_head_dim,
    "scoring_func": _scoring_func(),
    "scoring_func_v4": _scoring_func((4, "sqrtsoftplus")),
    "norm_topk_prob": _norm_topk_prob,
    "n_group": lambda blocks: _expert_groups(blocks)[0],
    "topk_group": lambda blocks: _expert_groups(blocks)[1],
    "topk_method": _topk_method,
    "index_topk_pattern": _index_topk_pattern,
    "indexer_types": _indexer_types,
    "linear_layer_types": _linear_layer_types,
    "mlp_layer_types": _mlp_layer_types,
    "linear_attn_config": _linear_attn_config,
    "index_kpool_always_select_tail": _select_tail,
    "swiglu_limit": _swiglu_limit,
    **DERIVED_CLASSIC,
    **DERIVED_EXPERTS,
    **DERIVED_GEMMA_N,
    **DERIVED_LONGROPE,
    **DERIVED_MOE_NEW,
    **DERIVED_SINGLE,
    **DERIVED_VISION,
}
