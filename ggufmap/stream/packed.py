"""The packed stream: quantised tensors as the rows of bytes that they are stored in.

A packed tensor is an ordinary one of a plain type: bytes. So everything that reads, cuts and moves whole rows (lazy
views, ranks, experts, `rope_rows`) does the same with it, and nothing else has to know. `mapping/storage.py` says which
tensors are packed, and gives the plan that goes with this view.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace

from ggufmap.checkpoint import Checkpoint, Tensor
from ggufmap.checkpoint.ggml_types import BYTES


def packed_view(checkpoint: Checkpoint, packed: Collection[str]) -> Checkpoint:
    """`checkpoint` with the tensors named `packed` as uint8 rows. It shares the files, which `checkpoint` closes."""
    view = copy.copy(checkpoint)
    view.tensors = {name: as_bytes(t) if name in packed else t for name, t in checkpoint.tensors.items()}
    return view


def as_bytes(tensor: Tensor) -> Tensor:
    """The same stored bytes, row by row: shape (..., rows, bytes of a row)."""
    return replace(tensor, type=BYTES, shape=(*tensor.shape[:-1], tensor.row_bytes), order="<")
