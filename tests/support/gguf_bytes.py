"""A GGUF writer written from the format's description alone, for files that no sane writer makes.

It shares nothing with gguf-py or ggufmap, so it can disagree with both. `build` makes a correct file of
what it is given; every count, length, offset and dimension can be overridden to make a wrong one:

    build([("general.architecture", STRING, "llama")], [TensorSpec("a.weight", (4, 2))])
    build([], [TensorSpec("a", (4,), offset=1 << 60)])            # data beyond the end
    build([("k", ARRAY, Array(UINT32, [1], count=1 << 40))])      # a lying array
    build([("k", STRING, Raw(b"\xff" * 4))])                      # any bytes in place of a value
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"GGUF"

# Metadata value types.
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_SCALARS = {
    UINT8: "B",
    INT8: "b",
    UINT16: "H",
    INT16: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "B",
    UINT64: "Q",
    INT64: "q",
    FLOAT64: "d",
}

# ggml tensor types: (elements in a block, bytes of a block). The numbers are the file format's.
F32, F16, Q4_0, Q8_0, Q4_K, Q6_K, BF16 = 0, 1, 2, 8, 12, 14, 30
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), Q6_K: (256, 210), BF16: (1, 2)}


@dataclass(frozen=True)
class Raw:
    """Bytes that stand in place of an encoded value, string or whole entry."""

    data: bytes


@dataclass(frozen=True)
class Array:
    """An array value; items of type ARRAY are themselves `Array`. `count` overrides the stated length."""

    item_type: int
    items: Sequence[Any]
    count: int | None = None


@dataclass(frozen=True)
class Text:
    """A string whose stated length may differ from its bytes, which need not be UTF-8."""

    data: bytes
    length: int | None = None


@dataclass(frozen=True)
class TensorSpec:
    """One tensor. `dims` is in the file's order (fastest first: GGUF's, the reverse of numpy's).

    `data` None means zeros of the size that type and dimensions ask for (nothing when the type is unknown
    here). `offset` and `n_dims` override what is written in the tensor's info; the data stay where they are.
    """

    name: str | bytes | Text | Raw
    dims: Sequence[int] = (1,)
    ggml_type: int = F32
    data: bytes | None = None
    offset: int | None = None
    n_dims: int | None = None


Entry = tuple[str | bytes | Text | Raw, int, Any] | Raw


def string(value: str | bytes | Text | Raw, endian: str = "<", length_format: str = "Q") -> bytes:
    """A length-prefixed string; a `Raw` goes out as it is, prefix and all."""
    if isinstance(value, Raw):
        return value.data
    text = value if isinstance(value, Text) else Text(value.encode() if isinstance(value, str) else value)
    length = len(text.data) if text.length is None else text.length
    return struct.pack(endian + length_format, length) + text.data


def value(kind: int, content: Any, endian: str = "<", length_format: str = "Q") -> bytes:
    """A metadata value without its type number."""
    if isinstance(content, Raw):
        return content.data
    if kind == STRING:
        return string(content, endian, length_format)
    if kind == ARRAY:
        count = len(content.items) if content.count is None else content.count
        head = struct.pack(f"{endian}I{length_format}", content.item_type, count)
        return head + b"".join(value(content.item_type, item, endian, length_format) for item in content.items)
    return struct.pack(endian + _SCALARS[kind], content)


def entry(key: str | bytes | Text | Raw, kind: int, content: Any, endian: str = "<", length: str = "Q") -> bytes:
    """A whole metadata entry: key, type number, value. `kind` may be a number that does not exist."""
    return string(key, endian, length) + struct.pack(endian + "I", kind) + value(kind, content, endian, length)


def tensor_bytes(spec: TensorSpec) -> bytes:
    """The tensor's data: what was given, or zeros."""
    if spec.data is not None:
        return spec.data
    if spec.ggml_type not in BLOCKS:
        return b""
    elements = 1
    for dim in spec.dims:
        elements *= dim
    block, size = BLOCKS[spec.ggml_type]
    return bytes(max(0, elements) // block * size)


def tensor_info(spec: TensorSpec, offset: int, endian: str = "<", length_format: str = "Q") -> bytes:
    """The tensor's entry in the header."""
    n_dims = len(spec.dims) if spec.n_dims is None else spec.n_dims
    stated = offset if spec.offset is None else spec.offset
    dims = struct.pack(f"{endian}{len(spec.dims)}{length_format}", *spec.dims)
    head = string(spec.name, endian, length_format) + struct.pack(endian + "I", n_dims)
    return head + dims + struct.pack(endian + "IQ", spec.ggml_type, stated)


def pad(size: int, alignment: int) -> int:
    """How many bytes are missing to the next multiple of `alignment`."""
    return -size % alignment if alignment > 0 else 0


def build(
    metadata: Sequence[Entry] = (),
    tensors: Sequence[TensorSpec] = (),
    *,
    version: int = 3,
    endian: str = "<",
    alignment: int = 32,
    magic: bytes = MAGIC,
    tensor_count: int | None = None,
    metadata_count: int | None = None,
    declare_alignment: bool | None = None,
) -> bytes:
    """A GGUF file. Every override defaults to the true value.

    `general.alignment` is written (last) when `alignment` is not the default 32, or as `declare_alignment`
    says. Version 1 has 32-bit counts and lengths, as that version had.
    """
    length = "I" if version == 1 else "Q"
    entries = [e.data if isinstance(e, Raw) else entry(*e, endian, length) for e in metadata]
    if (alignment != 32) if declare_alignment is None else declare_alignment:
        entries.append(entry("general.alignment", UINT32, alignment, endian, length))
    infos, blobs, offset = [], [], 0
    for spec in tensors:
        infos.append(tensor_info(spec, offset, endian, length))
        blob = tensor_bytes(spec)
        blob += bytes(pad(len(blob), alignment))
        blobs.append(blob)
        offset += len(blob)
    n_tensors = len(infos) if tensor_count is None else tensor_count
    n_entries = len(entries) if metadata_count is None else metadata_count
    head = magic + struct.pack(f"{endian}I2{length}", version, n_tensors, n_entries)
    head += b"".join(entries) + b"".join(infos)
    return head + bytes(pad(len(head), alignment)) + b"".join(blobs)
