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


def _mla_kv_b(tensors: Sequence[torch.Tensor], heads: int) -> list[torch.Tensor]:
    """The two halves that llama.cpp keeps for absorbed attention, back in one projection (conversion/deepseek.py)."""
    k_b, v_b = (tensor.reshape(heads, -1, tensor.shape[-1]) for tensor in tensors)
    joined = torch.cat((k_b.transpose(1, 2), v_b.to(k_b.dtype)), dim=1)
    return [joined.reshape(-1, joined.shape[-1])]


def _conv_channels(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """A depthwise convolution, which the converter stores without (or with other) axes of size one."""
    channels, kernel = (size for size in tensors[0].shape if size != 1)
    return [tensors[0].reshape(channels, 1, kernel)]


def _a_log(tensors: Sequence[torch.Tensor], _: int) -> list[torch.Tensor]:
    """The converter stores -exp(A_log); a value of 0 or more cannot come from it."""
    stored = tensors[0].float()
    if not bool((stored < 0).all()):
        raise MappingError(f"a decay (stored as -exp(A_log)) has the value {float(stored.max())}; below 0 expected")
    return [torch.log(-stored)]


APPLY: dict[str, Callable[[Sequence[torch.Tensor], int], list[torch.Tensor]]] = {
    "copy": _copy,
    "rope_rows": _rope_rows,
    "a_log": _a_log,
    "add": _add,
    "conv_channels": _conv_channels,
    "experts": _experts,
    "mla_kv_b": _mla_kv_b,
}


def apply(transform: Transform, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The checkpoint tensors that `transform` makes of the GGUF tensors' values."""
    return APPLY[transform.name](tensors, transform.argument or 0)
