"""Stored bytes to values: every ggml type to float32 or a model dtype, in bounded pieces.

libgguf's C kernels (bit-equal to gguf-py's reference, GIL released) decode quantised rows; gguf-py is the fallback.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from ggufmap.checkpoint import Checkpoint, Tensor
from ggufmap.checkpoint.ggml_types import GgmlType
from ggufmap.errors import UnsupportedError

CHUNK_VALUES = 1 << 20
"""Values decoded at a time: 4 MiB of float32, which stays in the cache between decoding and conversion."""

_NATIVE: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}

_Decoder = Callable[[npt.NDArray[np.uint8], npt.NDArray[np.float32], int, int], None]


def is_native(type: GgmlType) -> bool:
    """Whether values of this type are stored as plain numbers."""
    return type.name in _NATIVE


def read_values(
    checkpoint: Checkpoint,
    tensor: Tensor,
    dtype: torch.dtype,
    pool: ThreadPoolExecutor | None = None,
    rows: slice | None = None,
) -> torch.Tensor:
    """The values of `tensor`, in its shape; or of a run of its rows, as a matrix.

    Plain types keep their own dtype (so that the one rounding is the copy into the parameter); quantised ones are
    decoded in float32 and rounded to nearest even into `dtype`, by pieces of CHUNK_VALUES, on `pool` when given.
    Raises UnsupportedError for types that cannot be decoded, FileError when the file no longer holds the bytes.
    """
    tensor.type.require_usable(tensor.name)
    shape = tensor.shape if rows is None else (rows.stop - rows.start, tensor.columns)
    rows = slice(0, tensor.rows) if rows is None else rows
    if is_native(tensor.type):
        return _read_native(checkpoint, tensor, rows).view(shape)
    require_decodable(tensor)
    out = torch.empty((rows.stop - rows.start, tensor.columns), dtype=dtype, device="cpu")
    step = max(1, CHUNK_VALUES // tensor.columns)
    starts = range(rows.start, rows.stop, step)

    def decode(start: int) -> None:
        piece = slice(start, min(start + step, rows.stop))
        out[piece.start - rows.start : piece.stop - rows.start].copy_(decode_rows(checkpoint, tensor, piece))

    if pool is None or len(starts) == 1:
        for start in starts:
            decode(start)
    else:
        for _ in pool.map(decode, starts):
            pass
    return out.view(shape)


def decode_rows(checkpoint: Checkpoint, tensor: Tensor, rows: slice) -> torch.Tensor:
    """Rows of a quantised tensor as float32, shape (number of rows, columns)."""
    raw = np.empty((rows.stop - rows.start, tensor.row_bytes), dtype=np.uint8)
    checkpoint.read_into(tensor, raw.reshape(-1).data, rows)
    return decode(tensor, raw, tensor.columns)


def value_dtype(type: GgmlType) -> torch.dtype | None:
    """The dtype that plain numbers of this type have; None for quantised types."""
    return _NATIVE.get(type.name)


def decode(tensor: Tensor, raw: npt.NDArray[np.uint8], columns: int) -> torch.Tensor:
    """Contiguous stored bytes, shape (rows, bytes of `columns` values), as values of shape (rows, columns).

    Plain types keep their dtype, quantised ones become float32.
    """
    native = _NATIVE.get(tensor.type.name)
    if native is not None:
        width = tensor.type.bytes
        if tensor.order == ">":
            raw = np.ascontiguousarray(raw.reshape(-1, width)[:, ::-1])
        return torch.from_numpy(raw.reshape(-1)).view(native).view(-1, columns)
    values = np.empty((len(raw), columns), dtype=np.float32)
    _decoder(tensor.type)(raw.reshape(-1), values, len(raw), columns)
    return torch.from_numpy(values)


def require_decodable(tensor: Tensor) -> None:
    """Raise UnsupportedError when no decoder for the tensor's type is here."""
    if is_native(tensor.type):
        return
    if tensor.order == ">":
        raise UnsupportedError(
            f"tensor {tensor.name} is {tensor.type.name} in a big-endian file",
            hint="Convert the file to little-endian with llama.cpp's gguf_convert_endian.py.",
        )
    _decoder(tensor.type)


def _read_native(checkpoint: Checkpoint, tensor: Tensor, rows: slice) -> torch.Tensor:
    raw = np.empty((rows.stop - rows.start, tensor.row_bytes), dtype=np.uint8)
    checkpoint.read_into(tensor, raw.reshape(-1).data, rows)
    return decode(tensor, raw, tensor.columns)


@cache
def _decoder(type: GgmlType) -> _Decoder:
    for make in (_libgguf_decoder, _gguf_py_decoder):
        found = make(type)
        if found is not None:
            return found
    raise UnsupportedError(f"no decoder for ggml type {type.name} (id {type.id}) is installed")


def _libgguf_decoder(type: GgmlType) -> _Decoder | None:
    if importlib.util.find_spec("libgguf") is None:
        return None
    import libgguf

    if libgguf.type_size(type.id) != type.bytes:
        return None
    try:  # answers for types that it can only store
        libgguf.dequantize_rows_raw(type.id, bytes(type.bytes), 1, type.block)
    except ValueError:
        return None

    def decode(raw: npt.NDArray[np.uint8], values: npt.NDArray[np.float32], rows: int, columns: int) -> None:
        libgguf.dequantize_rows_into_raw(type.id, raw, values, rows, columns)

    return decode


def _gguf_py_decoder(type: GgmlType) -> _Decoder | None:
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(type.id)
        gguf.quants.dequantize(np.zeros((1, type.bytes), dtype=np.uint8), kind)
    except (ValueError, NotImplementedError):
        return None

    def decode(raw: npt.NDArray[np.uint8], values: npt.NDArray[np.float32], rows: int, columns: int) -> None:
        values[...] = gguf.quants.dequantize(raw.reshape(rows, -1), kind)

    return decode
