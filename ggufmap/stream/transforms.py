"""Named value transforms: each undoes what llama.cpp's converter did to a checkpoint tensor.

`mapping/transforms.py` knows their shapes; the tables have the same keys. A transform takes the GGUF tensors' values
and gives the checkpoint tensors' values, in the order of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

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


APPLY: dict[str, Callable[[Sequence[torch.Tensor], int], list[torch.Tensor]]] = {
    "copy": _copy,
    "rope_rows": _rope_rows,
    "add": _add,
}


def apply(transform: Transform, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The checkpoint tensors that `transform` makes of the GGUF tensors' values."""
    return APPLY[transform.name](tensors, transform.argument or 0)
