"""Sources of lazy tensors: rows and columns of stored tensors, decoded on demand into memory that is given."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ggufmap.checkpoint import Checkpoint, Tensor
from ggufmap.mapping.transforms import Transform
from ggufmap.stream.dequantise import (
    decode,
    decode_on_device,
    decodes_on_device,
    decodes_to,
    plain_values,
    require_decodable,
    value_dtype,
)
from ggufmap.stream.lanes import Put
from ggufmap.stream.lazy import lazy_tensor
from ggufmap.stream.transforms import apply
from ggufmap.stream.workers import EDGE, VALUE_BYTES, Buffer, Workers

_SEGMENT_BYTES = 256
"""Column parts at least this long are read row by row; shorter ones cost more calls than the bytes they save."""
_TRANSFORMED = 8  # bytes: a value on its way through a transform, as float32, once or twice
_NONE: Buffer = np.empty(0, dtype=np.uint8)


@dataclass(slots=True)
class Meter:
    """Bytes asked of the file, and the seconds that went by in reading and in decoding, over all threads."""

    nbytes: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, nbytes: int, seconds: float) -> None:
        """Count a read."""
        with self._lock:
            self.nbytes += nbytes
            self.read_s += seconds

    def decoded(self, seconds: float) -> None:
        """Count a decoding."""
        with self._lock:
            self.decode_s += seconds


class TensorSource:
    """The rows of a stored tensor, through a transform that keeps groups of `group` rows together.

    Quantised values are said to be of `dtype`, but come as float32, to be rounded once, to nearest even, where they are
    copied to, unless a destination that `fills` is given; plain ones come in the type they are stored in.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensor: Tensor,
        dtype: torch.dtype,
        meter: Meter,
        transform: Transform | None = None,
        group: int = 1,
    ) -> None:
        self.name = tensor.name
        self.shape = (tensor.rows, tensor.columns)
        self.dtype = value_dtype(tensor.type) or dtype
        self.group = group
        self.block = tensor.type.block
        plain = value_dtype(tensor.type) if transform is None and tensor.order == "<" else None
        self.value_bytes = VALUE_BYTES if plain is None else plain.itemsize
        self._stored = Stored(checkpoint, tensor, meter)
        self._transform = transform

    def fills(self, dtype: torch.dtype) -> bool:
        """Whether `read` can write values of this dtype straight into a destination."""
        tensor = self._stored.tensor
        if self._transform is not None or tensor.order != "<":
            return False
        plain = value_dtype(tensor.type)
        return decodes_to(tensor.type, dtype) if plain is None else dtype is plain

    def need(self, rows: slice, columns: slice) -> int:
        """Bytes of scratch memory that `read` works in, and those of what it returns."""
        again = 0 if self._transform is None else (rows.stop - rows.start) * (columns.stop - columns.start)
        return self._stored.need(rows.stop - rows.start, columns) + again * _TRANSFORMED

    def read(
        self, rows: slice, columns: slice, scratch: Buffer, out: torch.Tensor | None = None, put: Put | None = None
    ) -> torch.Tensor:
        """The values of these rows and columns, both on group and block edges: shape (rows, columns).

        `out` itself if it is given (contiguous, on the CPU, of a dtype that `fills`) and could be filled; else they lie
        in `scratch`, or by themselves. With `put` they are where that puts the bytes.
        """
        values = self._stored.read(rows, columns, scratch, out, put)
        if self._transform is None:
            return values
        heads = (rows.stop - rows.start) // self.group
        return apply(Transform(self._transform.name, heads), [values])[0]


class StackSource:
    """Stacks of equally many matrices through a transform of one output that works on each place of the stack alone.

    A place is read as a whole, and the next one by itself.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tensors: Sequence[Tensor],
        transform: Transform,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        meter: Meter,
    ) -> None:
        """`shape` is that of the output."""
        self.name = ", ".join(tensor.name for tensor in tensors)
        self.group = math.prod(shape[1:-1])
        self.shape = (shape[0] * self.group, shape[-1])
        self.block = shape[-1]
        self.value_bytes = VALUE_BYTES
        self.dtype = value_dtype(tensors[0].type) or dtype
        self._stored = [Stored(checkpoint, tensor, meter) for tensor in tensors]
        self._transform = transform

    def fills(self, dtype: torch.dtype) -> bool:
        """Nothing: a place is put together first."""
        return False

    def need(self, rows: slice, columns: slice) -> int:
        """See TensorSource.need."""
        places = (rows.stop - rows.start) // self.group
        inputs = sum(stored.need(places * stored.rows_of_place, stored.all_columns) for stored in self._stored)
        return int(inputs + (rows.stop - rows.start) * self.shape[1] * _TRANSFORMED)

    def read(
        self, rows: slice, columns: slice, scratch: Buffer, out: torch.Tensor | None = None, put: Put | None = None
    ) -> torch.Tensor:
        """See TensorSource.read."""
        first, last = rows.start // self.group, rows.stop // self.group
        inputs = []
        for stored in self._stored:
            size = stored.rows_of_place
            part = stored.need((last - first) * size, stored.all_columns)
            values = stored.read(slice(first * size, last * size), stored.all_columns, scratch[:part], put=put)
            inputs.append(values.view(last - first, *stored.tensor.shape[1:]))
            scratch = scratch[part:]
        return apply(self._transform, inputs)[0].reshape(rows.stop - rows.start, self.shape[1])


class Stored:
    """A stored tensor's bytes, decoded by rows and columns."""

    def __init__(self, checkpoint: Checkpoint, tensor: Tensor, meter: Meter) -> None:
        self.tensor = tensor
        self.all_columns = slice(0, tensor.columns)
        self.rows_of_place = tensor.rows // tensor.shape[0] if len(tensor.shape) > 2 else tensor.rows
        self._checkpoint = checkpoint
        self._meter = meter
        self._plain = value_dtype(tensor.type) is not None
        self._on_device = decodes_on_device(tensor.type)

    def need(self, rows: int, columns: slice) -> int:
        """Bytes of scratch memory for `rows` rows of these columns."""
        read, wanted = self._lengths(columns)
        copied = 0 if read == wanted and self.tensor.order == "<" else wanted
        values = 0 if self._plain else (columns.stop - columns.start) * torch.float32.itemsize
        return sum(_edged(rows * size) for size in (read, copied, values))

    def read(
        self, rows: slice, columns: slice, scratch: Buffer, out: torch.Tensor | None = None, put: Put | None = None
    ) -> torch.Tensor:
        """Values of these rows and columns (on block edges): `out` itself if it could be filled, else in `scratch`.

        With `put`, the bytes are decoded where that puts them.
        """
        count, width = rows.stop - rows.start, columns.stop - columns.start
        read, wanted = self._lengths(columns)
        if self._plain:
            if out is not None and read == wanted:
                self._read(rows, columns, out.view(torch.uint8).numpy().reshape(-1))
                return out
            return plain_values(self.tensor, self._read(rows, columns, scratch)[0], width, put)
        raw, rest = self._read(rows, columns, scratch)
        if put is not None and self._on_device:
            return decode_on_device(self.tensor.type, put(raw), count)
        if out is None:
            values = rest[: count * width * torch.float32.itemsize].view(np.float32).reshape(count, width)
        else:
            values = (out if out.dtype is torch.float32 else out.view(torch.uint16)).numpy()
        started = time.perf_counter()
        decode(self.tensor.type, raw, values)
        self._meter.decoded(time.perf_counter() - started)
        if put is not None:
            return put(values.reshape(-1).view(np.uint8)).view(torch.float32).view(count, width)
        return torch.from_numpy(values) if out is None else out

    def _lengths(self, columns: slice) -> tuple[int, int]:
        """Bytes to read of a row, and how many of them are wanted."""
        wanted = self.tensor.type.row_bytes(columns.stop - columns.start)
        return (self.tensor.row_bytes if wanted < _SEGMENT_BYTES else wanted), wanted

    def _read(self, rows: slice, columns: slice, buffer: Buffer) -> tuple[Buffer, Buffer]:
        """The wanted bytes, contiguous, at the start of `buffer` or after what was read, and what of it is left."""
        tensor, count = self.tensor, rows.stop - rows.start
        read, wanted = self._lengths(columns)
        start = tensor.type.row_bytes(columns.start)
        raw, rest = buffer[: count * read], buffer[_edged(count * read) :]
        started = time.perf_counter()
        if read == tensor.row_bytes:
            self._checkpoint.read_into(tensor, raw.data, rows)
        else:
            source = self._checkpoint.splits[tensor.split].source
            base, view = tensor.offset + rows.start * tensor.row_bytes + start, raw.data
            for index in range(count):
                source.read_into(base + index * tensor.row_bytes, view[index * read : (index + 1) * read])
        self._meter.read(raw.nbytes, time.perf_counter() - started)
        if read == wanted:
            return raw, rest
        part = rest[: count * wanted]
        part.reshape(count, wanted)[...] = raw.reshape(count, read)[:, start : start + wanted]
        return part, rest[_edged(count * wanted) :]


def read_values(
    checkpoint: Checkpoint,
    tensor: Tensor,
    dtype: torch.dtype,
    workers: Workers | None = None,
    meter: Meter | None = None,
) -> torch.Tensor:
    """All values of `tensor`, in its shape: plain types in their own dtype, quantised ones rounded into `dtype`.

    Raises UnsupportedError for types that cannot be decoded, FileError when the file no longer holds the bytes.
    """
    tensor.type.require_usable(tensor.name)
    require_decodable(tensor)
    meter = meter or Meter()
    plain = value_dtype(tensor.type)
    if workers is not None and plain is not None and tensor.order == "<" and tensor.elements <= workers.piece:
        workers.keep(tensor.nbytes, f"tensor {tensor.name}")  # a vector: a lazy one would take longer than to read it
        stored, values = Stored(checkpoint, tensor, meter), torch.empty(tensor.shape, dtype=plain, device="cpu")
        stored.read(slice(0, tensor.rows), stored.all_columns, _NONE, values.view(tensor.rows, -1))
        return values
    source = TensorSource(checkpoint, tensor, dtype, meter)
    return lazy_tensor(source, tensor.shape, workers).materialise()


def _edged(nbytes: int) -> int:
    return -(-nbytes // EDGE) * EDGE
