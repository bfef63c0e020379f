"""Sources of lazy tensors: rows and columns of a stored tensor, decoded on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import torch

from ggufmap.checkpoint import Checkpoint, Tensor
from ggufmap.mapping.transforms import Transform
from ggufmap.stream.dequantise import decode, value_dtype
from ggufmap.stream.transforms import apply

_SEGMENT_BYTES = 256
"""Column parts at least this long are read row by row; shorter ones cost more calls than the bytes they save."""


@dataclass(slots=True)
class Meter:
    """Bytes asked of the file, over all threads."""

    nbytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, nbytes: int) -> None:
        """Count a read."""
        with self._lock:
            self.nbytes += nbytes


class TensorSource:
    """`count` rows of a stored tensor from row `first`, through a transform that keeps groups of `group` rows together.

    Quantised values come in `dtype`, rounded to nearest even; plain ones in the type they are stored in.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensor: Tensor,
        first: int,
        count: int,
        dtype: torch.dtype,
        meter: Meter,
        transform: Transform | None = None,
        group: int = 1,
    ) -> None:
        self.shape = (count, tensor.columns)
        self.dtype = value_dtype(tensor.type) or dtype
        self.group = group
        self.block = tensor.type.block
        self._checkpoint = checkpoint
        self._tensor = tensor
        self._first = first
        self._meter = meter
        self._transform = transform

    def read(self, rows: slice, columns: slice) -> torch.Tensor:
        """The values of these rows and columns, shape (rows, columns); both on group and block edges."""
        raw = self._bytes(slice(self._first + rows.start, self._first + rows.stop), columns)
        values = decode(self._tensor, raw, columns.stop - columns.start)
        if self._transform is None:
            return values
        heads = (rows.stop - rows.start) // self.group
        return apply(Transform(self._transform.name, heads), [values])[0]

    def _bytes(self, rows: slice, columns: slice) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """The stored bytes, one contiguous run of the wanted columns per row."""
        tensor, type = self._tensor, self._tensor.type
        count = rows.stop - rows.start
        start, length = type.row_bytes(columns.start), type.row_bytes(columns.stop - columns.start)
        if length == tensor.row_bytes or length < _SEGMENT_BYTES:
            raw = np.empty((count, tensor.row_bytes), dtype=np.uint8)
            self._checkpoint.read_into(tensor, raw.reshape(-1).data, rows)
            self._meter.add(raw.nbytes)
            return np.ascontiguousarray(raw[:, start : start + length])
        raw = np.empty((count, length), dtype=np.uint8)
        source = self._checkpoint.splits[tensor.split].source
        base = tensor.offset + rows.start * tensor.row_bytes + start
        for index in range(count):
            source.read_into(base + index * tensor.row_bytes, raw[index].data)
        self._meter.add(raw.nbytes)
        return raw
