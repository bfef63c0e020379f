"""Stored bytes to values: quantised ggml types to float32, plain ones to what they are.

Quantised rows are decoded by C that the machine's own compiler has built (`compiled.py`); without it by libgguf's
kernels, for what it lacks by gguf-py. Q2_0, which neither decodes yet, is decoded here. On a GPU torch's own operations
do it. All of them make the same values, bit for bit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from ggufmap.checkpoint import Tensor
from ggufmap.checkpoint.ggml_types import BYTES, GgmlType
from ggufmap.errors import UnsupportedError
from ggufmap.stream import compiled, torch_decode
from ggufmap.stream.lanes import Put

_NATIVE: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    BYTES.name: torch.uint8,
}

Bytes = npt.NDArray[np.uint8]
Values = compiled.Values
_Decoder = Callable[[Bytes, npt.NDArray[np.float32]], None]


def is_native(type: GgmlType) -> bool:
    """Whether values of this type are stored as plain numbers."""
    return type.name in _NATIVE


def value_dtype(type: GgmlType) -> torch.dtype | None:
    """The dtype that plain numbers of this type have; None for quantised types."""
    return _NATIVE.get(type.name)


def decode(type: GgmlType, raw: Bytes, values: Values) -> None:
    """Decode contiguous whole blocks of a quantised type into `values`, of any contiguous shape, on this thread.

    They are float32, or uint16 for the bits of bfloat16 where `decodes_to` says so.
    """
    (_compiled(type) or _decoder(type))(raw, values.reshape(-1))


def decodes_to(type: GgmlType, dtype: torch.dtype) -> bool:
    """Whether `decode` writes values of `dtype` of this quantised type. The first call may build the library."""
    return dtype is torch.float32 or (dtype is torch.bfloat16 and _compiled(type) is not None)


def decodes_on_device(type: GgmlType) -> bool:
    """Whether `decode_on_device` knows this quantised type."""
    return type.name in torch_decode.DECODED


def decode_on_device(type: GgmlType, raw: torch.Tensor, rows: int) -> torch.Tensor:
    """Decode contiguous whole blocks to float32 where they are, shape (rows, columns)."""
    return torch_decode.decode(raw.view(rows, -1), type.name)


def plain_values(tensor: Tensor, raw: Bytes, columns: int, put: Put | None = None) -> torch.Tensor:
    """Contiguous stored bytes of a plain type as what they are, shape (rows, columns): no copy but to swap bytes.

    With `put`, they are where that puts them.
    """
    if tensor.order == ">":
        raw = np.ascontiguousarray(raw.reshape(-1, tensor.type.bytes)[:, ::-1]).reshape(-1)
    there = torch.from_numpy(raw) if put is None else put(raw)
    return there.view(_NATIVE[tensor.type.name]).view(-1, columns)


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


@cache
def _compiled(type: GgmlType) -> compiled.Decoder | None:
    return compiled.compiled(type, _decoder(type))


@cache
def _decoder(type: GgmlType) -> _Decoder:
    """One that every machine has, and that the compiled one is held against."""
    for make in (_libgguf_decoder, _gguf_py_decoder, _own_decoder):
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

    def decode(raw: Bytes, values: npt.NDArray[np.float32]) -> None:
        # As one row: more than one would start threads, for every call anew, beside those that the load has.
        libgguf.dequantize_rows_into_raw(type.id, raw, values, 1, len(values))

    return decode


def _gguf_py_decoder(type: GgmlType) -> _Decoder | None:
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(type.id)
        gguf.quants.dequantize(np.zeros((1, type.bytes), dtype=np.uint8), kind)
    except (ValueError, NotImplementedError):
        return None

    def decode(raw: Bytes, values: npt.NDArray[np.float32]) -> None:
        values[...] = gguf.quants.dequantize(raw.reshape(1, -1), kind)[0]

    return decode


def _own_decoder(type: GgmlType) -> _Decoder | None:
    """Q2_0: a float16 scale, then two bits a value, lowest first, for -1 to 2 (ggml-quants.c, dequantize_row_q2_0)."""
    if type.name != "Q2_0":
        return None
    factors, shifts = np.arange(-1, 3, dtype=np.float32), np.arange(0, 8, 2, dtype=np.uint8)

    def decode(raw: Bytes, values: npt.NDArray[np.float32]) -> None:
        blocks = raw.reshape(-1, type.bytes)
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        codes = blocks[:, 2:, None] >> shifts & 3
        values[...] = (factors[codes].reshape(-1, type.block) * scales).reshape(-1)

    return decode
