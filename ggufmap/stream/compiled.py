"""Decoders of the compiled library (`native/decode.c`), each proven on a sample before it is used.

They write float32, or bfloat16 without a detour over float32, in less time than libgguf: of some types, a tenth.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ggufmap.checkpoint.ggml_types import GgmlType
from ggufmap.native import native
from ggufmap.stream import decode_tables as tables

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]
"""float32, or uint16 for the bits of bfloat16."""
Decoder = Callable[[Bytes, Values], None]

_SAMPLE = 5 * 256  # values: of each type two of the library's batches, and a part of one
_Shapes = tuple[tuple[int, ...], ...]
_SIGNS, _BITS = (128, 8), (256, 8)
# What the library looks up, by type, and the shapes that its indices stay within.
_TABLES: dict[str, tuple[Callable[[], tuple[tables.Rows, ...]], _Shapes]] = {
    "MXFP4": (lambda: (tables.listed("MXFP4"), tables.mxfp4_scales()), ((16,), (256, 1))),
    "NVFP4": (lambda: (tables.listed("NVFP4"), tables.nvfp4_scales()), ((16,), (256, 1))),
    "IQ4_NL": (lambda: (tables.listed("IQ4_NL"),), ((16,),)),
    "IQ4_XS": (lambda: (tables.listed("IQ4_NL"),), ((16,),)),
    "IQ2_XXS": (lambda: (tables.grid("IQ2_XXS"), tables.signs()), ((256, 8), _SIGNS)),
    "IQ2_XS": (lambda: (tables.grid("IQ2_XS"), tables.signs()), ((512, 8), _SIGNS)),
    "IQ2_S": (lambda: (tables.grid("IQ2_S"), tables.fields(1, (1, -1))), ((1024, 8), _BITS)),
    "IQ3_XXS": (lambda: (tables.grid("IQ3_XXS"), tables.signs()), ((256, 4), _SIGNS)),
    "IQ3_S": (lambda: (tables.grid("IQ3_S"), tables.fields(1, (1, -1))), ((512, 4), _BITS)),
    "IQ1_S": (lambda: (tables.iq1_grid(),), ((4096, 8),)),
    "IQ1_M": (lambda: (tables.iq1_grid(),), ((4096, 8),)),
}


def compiled(type: GgmlType, reference: Callable[[Bytes, npt.NDArray[np.float32]], None]) -> Decoder | None:
    """The library's decoder of a type; None without a library, or when one bit of a sample is not the reference's."""
    decoder = _decoder(type)
    if decoder is None or _agree(type, decoder, reference):
        return decoder
    message = "ggufmap: what %s has built decodes %s to other values than libgguf, which does it instead"
    logging.getLogger(__name__).warning(message, native().compiler, type.name)
    return None


def _decoder(type: GgmlType) -> Decoder | None:
    library = native().library
    symbols = [f"{type.name.lower()}_{kind}" for kind in ("f32", "bf16")]
    if library is None or not all(hasattr(library, symbol) for symbol in symbols):
        return None
    make, shapes = _TABLES.get(type.name, (tuple, ()))
    lists = [np.ascontiguousarray(rows) for rows in make()]
    if tuple(rows.shape for rows in lists) != shapes:
        return None
    functions = {}
    for symbol, dtype in zip(symbols, ("float32", "uint16"), strict=True):
        functions[dtype] = function = library[symbol]
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]

    def decode(raw: Bytes, values: Values) -> None:
        blocks, left = divmod(len(values), type.block)
        if left or raw.nbytes != blocks * type.bytes or not (raw.flags.c_contiguous and values.flags.c_contiguous):
            raise ValueError(f"{raw.nbytes} bytes of {type.name} are not {len(values)} values")  # C would not notice
        first, second = ([rows.ctypes.data for rows in lists] + [None, None])[:2]
        functions[values.dtype.name](raw.ctypes.data, values.ctypes.data, blocks, first, second)

    return decode


def _agree(type: GgmlType, decoder: Decoder, reference: Callable[[Bytes, npt.NDArray[np.float32]], None]) -> bool:
    """Whether both make the same of random blocks, NaNs apart, and the rounded ones are what torch rounds them to."""
    raw = np.random.default_rng(type.id).integers(0, 256, type.row_bytes(_SAMPLE), dtype=np.uint8)
    expected = torch.empty(_SAMPLE, dtype=torch.float32, device="cpu")  # vLLM's defaults are others while it loads
    found, rounded = torch.empty_like(expected), torch.empty_like(expected, dtype=torch.bfloat16)
    with np.errstate(all="ignore"):
        reference(raw, expected.numpy())
    decoder(raw, found.numpy())
    decoder(raw, rounded.view(torch.uint16).numpy())
    return _same(found, expected, torch.int32) and _same(rounded, expected.to(torch.bfloat16), torch.int16)


def _same(found: torch.Tensor, expected: torch.Tensor, bits: torch.dtype) -> bool:
    equal = (found.view(bits) == expected.view(bits)) | (found.isnan() & expected.isnan())
    return bool(equal.all())
