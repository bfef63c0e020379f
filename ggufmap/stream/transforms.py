"""Named value transforms: each undoes what llama.cpp's converter did to a checkpoint tensor.

`mapping/transforms.py` knows their shapes; the tables have the same keys. A transform takes the GGUF tensors' values
and gives the checkpoint tensors' values, in the order of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ggufmap.errors import MappingError
from ggufmap.mapping.transforms import Transform


def _copy(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    return list(tensors)


def _rope_rows(tensors: Sequence[torch.Tensor], heads: int) -> list[torch.Tensor]:
    """Rows (or bias values) of each head from (d/2, 2) back to (2, d/2): llama.cpp conversion/llama.py, permute."""
    tensor = tensors[0]
    halves = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return [halves.transpose(1, 2).reshape(tensor.shape)]


def _add(tensors: Sequence[torch.Tensor], amount: int) -> list[torch.Tensor]:
    """Norms stored off by one: computed in float32 whatever the stored type."""
    return [tensors[0].float() + amount]


def _experts(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A stack cut on its outermost axis, in file order."""
    return list(tensors[0].unbind(0))


def _experts_below(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A stack as one matrix, expert below expert (conversion/dbrx.py)."""
    return [tensors[0].flatten(0, 1)]


def _turned_experts_below(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The same of transposed experts: DBRX keeps the down projection by the rows that it takes in."""
    return [tensors[0].transpose(1, 2).flatten(0, 1)]


def _expert_halves(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A stack in which each expert's gate stands above its up projection (conversion/base.py, fuse_gate_up_exps)."""
    return [half for expert in tensors[0].unbind(0) for half in expert.chunk(2)]


def _mla_kv_b(tensors: Sequence[torch.Tensor], heads: int) -> list[torch.Tensor]:
    """The two halves that llama.cpp keeps for absorbed attention, back in one projection (conversion/deepseek.py)."""
    k_b, v_b = (tensor.reshape(heads, -1, tensor.shape[-1]) for tensor in tensors)
    joined = torch.cat((k_b.transpose(1, 2), v_b.to(k_b.dtype)), dim=1)
    return [joined.reshape(-1, joined.shape[-1])]


def _conv_channels(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A depthwise convolution, which the converter stores without (or with other) axes of size one."""
    channels, kernel = (size for size in tensors[0].shape if size != 1)
    return [tensors[0].reshape(channels, 1, kernel)]


_LOG_STEPS = 4 * torch.finfo(torch.float32).eps  # what exp and log in float32 lose between them


def _minus_inverse_root(tensors: Sequence[torch.Tensor], square: int) -> list[torch.Tensor]:
    """The converter adds `square ** -0.5` in float32 (conversion/plamo.py: 1/5 and 1/5^1.5), which rounds.

    Where the nearest bfloat16 value gives what is stored, it is that one.
    """
    stored, offset = tensors[0].float(), torch.tensor(square**-0.5)
    exact = (stored.double() - offset.double()).float()
    short = exact.to(torch.bfloat16).float()
    return [torch.where(short + offset == stored, short, exact)]


def _a_log(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The converter stores -exp(A_log); a value of 0 or more cannot come from it.

    Nearly every A_log is published in bfloat16: where the nearest such value gives what is stored, it is that one.
    """
    stored = tensors[0].float()
    if not bool((stored < 0).all()):
        raise MappingError(f"a decay (stored as -exp(A_log)) has the value {float(stored.max())}; below 0 expected")
    exact = torch.log(-stored.double())
    short = exact.to(torch.bfloat16).double()
    return [torch.where((torch.exp(short) + stored).abs() <= _LOG_STEPS * stored.abs(), short, exact).float()]


def _a_log_flat(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The same of a vector that the converter gave an axis of size one (conversion/mamba.py, Mamba 2)."""
    return [_a_log(tensors, 0)[0].reshape(-1)]


def _log_flat(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The same of one that is stored as exp(A_log), without the sign (conversion/bailingmoe3.py)."""
    return _a_log_flat([-tensors[0]], 0)


def _flat(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A vector that the converter stores with more axes (conversion/mamba.py: D, norms by group)."""
    return [tensors[0].reshape(-1)]


def _join_rows(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """Halves of a fused projection, or of a stack of them, below each other again (conversion/granite.py)."""
    return [torch.cat([tensor.to(tensors[0].dtype) for tensor in tensors], dim=-2)]


def _join_values(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The biases of a fused projection behind each other again (conversion/qwenvl.py)."""
    return [torch.cat([tensor.to(tensors[0].dtype) for tensor in tensors])]


def _frames(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A patch embedding that runs over time, which the converter cuts into one per frame (conversion/qwenvl.py)."""
    return [torch.stack([tensor.to(tensors[0].dtype) for tensor in tensors], dim=2)]


def _transpose(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """GPT-2's Conv1D weights, which the converter turns (conversion/gpt2.py)."""
    return [tensors[0].t().contiguous()]


def _qkv_heads(tensors: Sequence[torch.Tensor], heads: int) -> list[torch.Tensor]:
    """All queries, all keys, all values back to query, key, value of one head after another (conversion/bloom.py)."""
    parts = tensors[0].view(3, heads, -1, *tensors[0].shape[1:])
    return [parts.transpose(0, 1).reshape(tensors[0].shape)]


def _qkv_groups(tensors: Sequence[torch.Tensor], groups: int) -> list[torch.Tensor]:
    """The same for grouped heads: a group is its queries, one key, one value (conversion/falcon.py)."""
    rows, columns = tensors[0].shape
    single = (rows - columns) // 2
    parts = tensors[0].split((columns, single, single))
    return [torch.cat([part.view(groups, -1, columns) for part in parts], dim=1).reshape(rows, columns)]


def _qkv_groups_rope(tensors: Sequence[torch.Tensor], groups: int) -> list[torch.Tensor]:
    """The same of three tensors, query and key permuted for interleaved RoPE (conversion/internlm.py)."""
    query, key, value = tensors
    heads = query.shape[0] // (key.shape[0] // groups)
    plain = (*_rope_rows((query,), heads), *_rope_rows((key.to(query.dtype),), groups), value.to(query.dtype))
    joined = torch.cat([part.view(groups, -1, part.shape[1]) for part in plain], dim=1)
    return [joined.reshape(-1, query.shape[1])]


def _join_rope_rows(tensors: Sequence[torch.Tensor], heads: int, kv_heads: int) -> list[torch.Tensor]:
    """Query, key and value below each other again, query and key permuted for RoPE (conversion/bailingmoe.py)."""
    query, key, value = tensors
    return _join_rows((*_rope_rows((query,), heads), *_rope_rows((key,), kv_heads), value), 0)


def _as_row(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A matrix of one row, which older converters squeezed into a vector (gates of shared experts)."""
    return [tensors[0].reshape(1, -1)]


def _group_rows(tensors: Sequence[torch.Tensor], groups: int) -> list[torch.Tensor]:
    """Query, key, value and gate of one head below each other, head after head (conversion/qwen.py, Qwen3-Next)."""
    joined, gate = tensors[0], tensors[1].to(tensors[0].dtype)
    single = (joined.shape[0] - gate.shape[0]) // 2
    parts = (*joined.split((single, single, gate.shape[0])), gate)
    return [torch.cat([part.view(groups, -1, part.shape[1]) for part in parts], dim=1).flatten(0, 1)]


def _untile(tensor: torch.Tensor, groups: int, heads: int) -> torch.Tensor:
    """Heads from ggml's tiled order (first of each group, second of each, ...) back to group after group."""
    parts = tensor.reshape(heads // groups, groups, tensor.shape[0] // heads, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape)


def _tiled_rows(tensors: Sequence[torch.Tensor], groups: int, heads: int) -> list[torch.Tensor]:
    """Value heads of linear attention along the rows (conversion/qwen.py, _reorder_v_heads)."""
    return [_untile(tensors[0], groups, heads)]


def _tiled_columns(tensors: Sequence[torch.Tensor], groups: int, heads: int) -> list[torch.Tensor]:
    """The same along the columns, for the projection that takes the heads' output."""
    return [_untile(tensors[0].T, groups, heads).T.contiguous()]


def _tiled_tail(tensors: Sequence[torch.Tensor], groups: int, heads: int, size: int) -> list[torch.Tensor]:
    """The same of the last `size` rows: the value part below query and key."""
    rest = tensors[0].shape[0] - size
    return [torch.cat((tensors[0][:rest], _untile(tensors[0][rest:], groups, heads)))]


def _tiled_tail_conv(tensors: Sequence[torch.Tensor], groups: int, heads: int, size: int) -> list[torch.Tensor]:
    return _tiled_tail(_conv_channels(tensors, 0), groups, heads, size)


def _tiled_a_log(tensors: Sequence[torch.Tensor], groups: int, heads: int) -> list[torch.Tensor]:
    return [_untile(_a_log(tensors, 0)[0], groups, heads)]


def _stacked_columns(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """Experts' matrices the other way round, gate before up (llama.cpp conversion/llama.py, Llama4Model)."""
    return [torch.cat(list(tensors), dim=1).transpose(1, 2).contiguous()]


def _alternating_columns(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The same with a column of the gate before each of up (conversion/gpt_oss.py)."""
    return [_interleave([tensor.transpose(1, 2) for tensor in tensors], 0)[0]]


def _interleave(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The values of the last axes in turn."""
    return [torch.stack(list(tensors), dim=-1).flatten(-2)]


APPLY: dict[str, Callable[..., list[torch.Tensor]]] = {
    "copy": _copy,
    "rope_rows": _rope_rows,
    "minus_inverse_root": _minus_inverse_root,
    "a_log": _a_log,
    "a_log_flat": _a_log_flat,
    "add": _add,
    "log_flat": _log_flat,
    "conv_channels": _conv_channels,
    "experts": _experts,
    "expert_halves": _expert_halves,
    "experts_below": _experts_below,
    "turned_experts_below": _turned_experts_below,
    "flat": _flat,
    "join_rows": _join_rows,
    "join_values": _join_values,
    "frames": _frames,
    "mla_kv_b": _mla_kv_b,
    "join_rope_rows": _join_rope_rows,
    "as_row": _as_row,
    "group_rows": _group_rows,
    "tiled_rows": _tiled_rows,
    "tiled_columns": _tiled_columns,
    "tiled_tail": _tiled_tail,
    "tiled_tail_conv": _tiled_tail_conv,
    "tiled_a_log": _tiled_a_log,
    "transpose": _transpose,
    "stacked_columns": _stacked_columns,
    "alternating_columns": _alternating_columns,
    "interleave": _interleave,
    "qkv_heads": _qkv_heads,
    "qkv_groups": _qkv_groups,
    "qkv_groups_rope": _qkv_groups_rope,
}


def apply(transform: Transform, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The checkpoint tensors that `transform` makes of the GGUF tensors' values."""
    return APPLY[transform.name](tensors, transform.argument or 0, *transform.more)
