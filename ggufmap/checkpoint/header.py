"""The GGUF header parser: magic, metadata and tensor table of one file, over a bounded byte source.

Nothing from the file is trusted before it is compared with a limit (`limits.py`) or with the bytes that remain.
Format: GGUF specification versions 2 and 3 (ggml `docs/gguf.md`); version 1 had 32-bit counts and is long gone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ggufmap.checkpoint import limits
from ggufmap.checkpoint.cursor import Cursor
from ggufmap.checkpoint.ggml_types import FORK_TYPES, GgmlType, ggml_type
from ggufmap.checkpoint.metadata import SCALARS, Array, Metadata, Value, ValueType
from ggufmap.checkpoint.source import ByteSource
from ggufmap.errors import FileError

_DEFAULT_ALIGNMENT = 32
_TABLE = ("tensor table", "")
_ENTRY = tuple(f"{dims}QIQ" for dims in range(limits.DIMENSIONS.most + 1))
"""The numbers of a tensor's row by its dimensions: sizes, type, offset."""
_STRUCT_CODES = {
    "u1": "B",
    "i1": "b",
    "u2": "H",
    "i2": "h",
    "u4": "I",
    "i4": "i",
    "f4": "f",
    "u8": "Q",
    "i8": "q",
    "f8": "d",
}
_type = functools.cache(ggml_type)

_Entry = tuple[str, GgmlType, tuple[int, ...], int]
"""A row of the tensor table: name, type, shape in numpy order, offset relative to the data."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table. `shape` is in numpy order (rows before columns), `offset` absolute."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The parsed header of one file; tensor data starts at `data_offset`."""

    version: int
    order: str
    metadata: Metadata
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    gap_bytes: int


def parse_header(source: ByteSource) -> Header:
    """Parse the header of `source`.

    Raises FileError when the file is no GGUF, breaks the format or asks for more than `limits` or its size allow.
    """
    version, order = _preamble(source)
    with _collector_at_rest():
        return _parse(Cursor(source, order, start=8), version)


def _parse(cursor: Cursor, version: int) -> Header:
    source = cursor.source
    tensor_count = cursor.count(limits.TENSORS, unit_bytes=25)
    key_count = cursor.count(limits.KEYS, unit_bytes=13)
    values: dict[str, Value] = {}
    for _ in range(key_count):
        key, value = _pair(cursor)
        if key in values:
            raise cursor.error("appears twice")
        values[key] = value
    metadata = Metadata(values, source.name)
    alignment = _alignment(metadata)
    entries = [_entry(cursor) for _ in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    entries = _as_a_fork_means(entries, source.size - data_offset, alignment)
    tensors, gaps = _place(entries, source, data_offset, alignment)
    return Header(version, cursor.order, metadata, tensors, alignment, data_offset, gaps)


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Without cycle collection: it would look at a hundred thousand new tuples again and again, and find nothing."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _preamble(source: ByteSource) -> tuple[int, str]:
    head = source.read(0, min(source.size, 64))
    if head[:4] != b"GGUF":
        raise FileError(f"{source.name}: not a GGUF file: {_looks_like(head)}", hint=_looks_hint(head))
    if len(head) < 8:
        raise FileError(f"{source.name}: truncated header: {source.size} bytes, no version")
    little, big = struct.unpack("<I", head[4:8])[0], struct.unpack(">I", head[4:8])[0]
    # The magic reads the same in both byte orders; a version has its low half filled in the right one only.
    order, version = ("<", little) if little & 0xFFFF else (">", big)
    if version not in (2, 3):
        known = "version 1 is obsolete" if version == 1 else "known are 2 and 3"
        raise FileError(f"{source.name}: GGUF version {version} is not supported ({known})")
    return version, order


def _looks_like(head: bytes) -> str:
    start = head.lstrip()[:15].lower()
    if not head:
        return "the file is empty"
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return "it is an HTML page"
    if start.startswith(b"version https:"):
        return "it is a Git LFS pointer"
    if head[8:9] == b"{":
        return "it looks like a safetensors file"
    if head[:2] == b"PK":
        return "it is a zip archive (a PyTorch checkpoint?)"
    return f"it starts with {head[:4]!r} instead of b'GGUF'"


def _looks_hint(head: bytes) -> str:
    if not head:
        return "Download the file again."
    if head[8:9] == b"{":
        return "vLLM loads safetensors by itself: `vllm serve FOLDER`; ggufmap is for .gguf files."
    if head.startswith(b"version https:"):
        return "Fetch the file that it stands for: `git lfs pull` in its repository."
    return "Download the file again; a saved error page or pointer has its name, not its bytes."


def _pair(cursor: Cursor) -> tuple[str, Value]:
    cursor.where = ("metadata key", "")
    key = cursor.text(limits.KEY_BYTES)
    cursor.where = ("metadata key", key)
    return key, _value(cursor, _value_type(cursor))


def _value_type(cursor: Cursor) -> ValueType:
    raw = cursor.unpack("I")
    try:
        return ValueType(int(raw))
    except ValueError:
        raise cursor.error(f"value type {raw} is unknown (known are 0 to {max(ValueType)})") from None


def _value(cursor: Cursor, type: ValueType) -> Value:
    if type is ValueType.STRING:
        return Value(type, cursor.string(limits.STRING_BYTES))
    if type is ValueType.ARRAY:
        return Value(type, _array(cursor, depth=1))
    number = cursor.unpack(_STRUCT_CODES[SCALARS[type]])
    if type is ValueType.BOOL:
        if number not in (0, 1):
            raise cursor.error(f"bool is {number}, allowed are 0 and 1")
        return Value(type, bool(number))
    return Value(type, number)


def _array(cursor: Cursor, depth: int) -> Array:
    cursor.check(limits.ARRAY_DEPTH, depth)
    element = _value_type(cursor)
    inner: tuple[Array, ...] = ()
    if element is ValueType.STRING:
        count = cursor.count(limits.STRINGS, unit_bytes=8)
        start = cursor.position
        cursor.spend(limits.STRINGS, count)
        cursor.skip_strings(count)
    elif element is ValueType.ARRAY:
        count = cursor.count(limits.NESTED_ARRAYS, unit_bytes=12)
        start = cursor.position
        cursor.spend(limits.NESTED_ARRAYS, count)
        inner = tuple(_array(cursor, depth + 1) for _ in range(count))
    else:
        width = int(SCALARS[element][1])
        count = cursor.count(limits.ARRAY_LENGTH, unit_bytes=width)
        start = cursor.position
        if element is ValueType.BOOL:
            cursor.skip_bools(count)
        else:
            cursor.skip(count * width)
    return Array(cursor.source, cursor.order, element, count, start, cursor.position - start, inner)


def _alignment(metadata: Metadata) -> int:
    value = metadata.get("general.alignment")
    if value is None:
        return _DEFAULT_ALIGNMENT
    low, high = limits.ALIGNMENT.least, limits.ALIGNMENT.most
    data = value.data
    if value.type is not ValueType.U32 or not isinstance(data, int) or not low <= data <= high or data & (data - 1):
        shown = data if isinstance(data, int) else value.type_name
        raise FileError(
            f"{metadata.file}: general.alignment is {shown} ({value.type_name}), "
            f"allowed is a u32 power of two from {low} to {high}"
        )
    return data


def _entry(cursor: Cursor) -> _Entry:
    cursor.where = _TABLE
    name = cursor.text(limits.NAME_BYTES)
    cursor.where = ("tensor", name)
    (count,) = cursor.record("I")
    if count > limits.DIMENSIONS.most:
        cursor.check(limits.DIMENSIONS, count)
    *dims, type_id, offset = cursor.record(_ENTRY[count])
    cursor.check(limits.TYPE, type_id)
    type = _type(type_id)
    elements = math.prod(dims)
    if elements > limits.ELEMENTS.most or (dims and max(dims) > limits.ELEMENTS.most):
        cursor.check(limits.ELEMENTS, max(elements, *dims))
    row = dims[0] if dims else 1  # ggml: a dimension that is not there is 1
    if type.problem is None and row % type.block:
        raise cursor.error(f"row length {row} is not a multiple of {type.name}'s block size {type.block}")
    return name, type, tuple(reversed(dims)) or (1,), offset


def _as_a_fork_means(entries: list[_Entry], data_bytes: int, alignment: int) -> list[_Entry]:
    """With a fork's type, where the way to the next tensor is too short for ggml's and just right for the fork's."""
    found: dict[int, GgmlType] = {}
    for index, (_, type, shape, offset) in enumerate(entries):
        other = FORK_TYPES.get(type.id)
        if other is None or shape[-1] % other.block:
            continue
        room = (entries[index + 1][3] if index + 1 < len(entries) else data_bytes) - offset
        elements = math.prod(shape)
        needed = elements // other.block * other.bytes
        if elements // type.block * type.bytes > room and room in (needed, -(-needed // alignment) * alignment):
            found[type.id] = other
    return [(name, found.get(type.id, type), shape, at) for name, type, shape, at in entries] if found else entries


def _place(
    entries: list[_Entry],
    source: ByteSource,
    data_offset: int,
    alignment: int,
) -> tuple[tuple[TensorInfo, ...], int]:
    """Turn relative offsets into absolute ones, checking alignment, order and overlap. Also: bytes in gaps."""
    tensors: list[TensorInfo] = []
    seen: set[str] = set()
    end = gaps = 0
    for index, (name, type, shape, offset) in enumerate(entries):
        if name in seen:
            raise FileError(f"{source.name}: tensor {name} appears twice in the tensor table")
        seen.add(name)
        if offset % alignment:
            raise FileError(
                f"{source.name}: tensor {name} starts at data offset {offset}, not a multiple of {alignment}"
            )
        if offset < end:
            raise FileError(
                f"{source.name}: tensor {name} starts at data offset {offset}, before the end ({end}) of "
                f"{entries[index - 1][0]}: tensors must be in order and not overlap"
            )
        gaps += offset - -(-end // alignment) * alignment if offset > end else 0
        if type.problem is None:
            nbytes = math.prod(shape) // type.block * type.bytes
        else:
            following = entries[index + 1][3] if index + 1 < len(entries) else max(source.size - data_offset, offset)
            nbytes = max(following - offset, 0)
        tensors.append(TensorInfo(name, type, shape, data_offset + offset, nbytes))
        end = offset + nbytes
    return tuple(tensors), gaps


def check_data(header: Header, source: ByteSource) -> None:
    """Check that every tensor's bytes are inside the file.

    Raises FileError naming the first tensor that is not, with the bytes it needs and those present.
    """
    for tensor in header.tensors:
        present = max(source.size - tensor.offset, 0)
        if tensor.nbytes > present:
            raise FileError(
                f"{source.name}: truncated: tensor {tensor.name} needs {tensor.nbytes} bytes at offset "
                f"{tensor.offset}, {present} are present (file size {source.size})",
                hint="The download is incomplete; fetch the file again.",
            )
