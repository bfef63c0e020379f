"""Decoders of the compiled library (`native/decode.c`), each proven on a sample before it is used.

They write float32, or bfloat16 without a detour over float32, and take a third of what libgguf's take, or less.
"""

from __future__ import annotations

import ctypes
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
# What the library looks up, by type, and the shapes that its indices stay within.
_LISTS: dict[str, Callable[[], tuple[tables.Rows, ...]]] = {
    "MXFP4": lambda: (tables.listed("MXFP4"), tables.mxfp4_scales()),
    "NVFP4": lambda: (tables.listed("NVFP4"), tables.nvfp4_scales()),
    "IQ4_NL": lambda: (tables.listed("IQ4_NL"),),
    "IQ4_XS": lambda: (tables.listed("IQ4_NL"),),
    "IQ2_XXS": lambda: (tables.grid("IQ2_XXS"), tables.signs()),
    "IQ2_XS": lambda: (tables.grid("IQ2_XS"), tables.signs()),
    "IQ2_S": lambda: (tables.grid("IQ2_S"), tables.fields(1, (1, -1))),
    "IQ3_XXS": lambda: (tables.grid("IQ3_XXS"), tables.signs()),
    "IQ3_S": lambda: (tables.grid("IQ3_S"), tables.fields(1, (1, -1))),
    "IQ1_S": lambda: (tables.iq1_grid(),),
    "IQ1_M": lambda: (tables.iq1_grid(),),
}
_SHAPES = {
    "MXFP4": ((16,), (256, 1)),
    "NVFP4": ((16,), (256, 1)),
    "IQ4_NL": ((16,),),
    "IQ4_XS": ((16,),),
    "IQ2_XXS": ((256, 8), (128, 8)),
    "IQ2_XS": ((512, 8), (128, 8)),
    "IQ2_S": ((1024, 8), (256, 8)),
    "IQ3_XXS": ((256, 4), (128, 8)),
    "IQ3_S": ((512, 4), (256, 8)),
    "IQ1_S": ((4096, 8),),
    "IQ1_M": ((4096, 8),),
}


def compiled(type: GgmlType, reference: Callable[[Bytes, npt.NDArray[np.float32]], None]) -> Decoder | None:
    """The library's decoder of a type; None without a library, or when one bit of a sample is not the reference's."""
    decoder = _decoder(type)
    return decoder if decoder is not None and _agree(type, decoder, reference) else None


def _decoder(type: GgmlType) -> Decoder | None:
    library = native().library
    symbols = [f"{type.name.lower()}_{kind}" for kind in ("f32", "bf16")]
    if library is None or not all(hasattr(library, symbol) for symbol in symbols):
        return None
    lists = [np.ascontiguousarray(rows) for rows in _LISTS.get(type.name, tuple)()]
    if tuple(rows.shape for rows in lists) != _SHAPES.get(type.name, ()):
        return None
    first, second = ([rows.ctypes.data for rows in lists] + [None, None])[:2]
    functions = {}
    for symbol, dtype in zip(symbols, ("float32", "uint16"), strict=True):
        functions[dtype] = function = library[symbol]
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]

    def decode(raw: Bytes, values: Values, _keep: Any = lists) -> None:
        blocks = len(values) // type.block
        assert raw.nbytes == blocks * type.bytes and values.flags.c_contiguous and raw.flags.c_contiguous
        functions[values.dtype.name](raw.ctypes.data, values.ctypes.data, blocks, first, second)

    return decode


def _agree(type: GgmlType, decoder: Decoder, reference: Callable[[Bytes, npt.NDArray[np.float32]], None]) -> bool:
    """Whether both make the same of random blocks, NaNs apart, and the rounded ones are what torch rounds them to."""
    raw = np.random.default_rng(type.id).integers(0, 256, type.row_bytes(_SAMPLE), dtype=np.uint8)
    expected, found = np.empty(_SAMPLE, np.float32), np.empty(_SAMPLE, np.float32)
    rounded = np.empty(_SAMPLE, np.uint16)
    with np.errstate(all="ignore"):
        reference(raw, expected)
    decoder(raw, found)
    decoder(raw, rounded)
    exact, number = torch.from_numpy(expected), ~np.isnan(expected)
    halves = exact.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return bool(
        np.array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))
        and np.array_equal(rounded[number], halves[number])
        and np.isnan(found[~number]).all()
        and np.isnan(torch.from_numpy(rounded.view(np.int16)).view(torch.bfloat16).float().numpy()[~number]).all()
    )
