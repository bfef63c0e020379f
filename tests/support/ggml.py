"""llama.cpp's own tensor types, out of the compiled library in xllamacpp: sizes, names and the row decoders in C."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt
import xllamacpp.xllamacpp as extension


@cache
def library() -> ctypes.CDLL:
    """The library, with the signatures of ggml.h."""
    found = ctypes.CDLL(extension.__file__)
    found.ggml_blck_size.restype = found.ggml_type_size.restype = ctypes.c_int64
    found.ggml_type_name.restype = ctypes.c_char_p
    return found


def sizes(id: int) -> tuple[int, int]:
    """Elements and bytes of a block; zeros for a type that was removed."""
    return library().ggml_blck_size(id), library().ggml_type_size(id)


def decoded(name: str, raw: npt.NDArray[np.uint8], elements: int) -> npt.NDArray[np.float32]:
    """What `dequantize_row_*` of ggml-quants.c makes of contiguous blocks."""
    decode = library()[f"dequantize_row_{name}"]
    decode.argtypes, decode.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    values = np.empty(elements, dtype=np.float32)
    decode(np.ascontiguousarray(raw).ctypes.data, values.ctypes.data, elements)
    return values
