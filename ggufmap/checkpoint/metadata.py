"""Metadata values of a GGUF header: typed getters over lazily decoded values."""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ggufmap.checkpoint.limits import LIST
from ggufmap.checkpoint.source import ByteSource
from ggufmap.errors import MetadataError


class ValueType(enum.IntEnum):
    """Type ids of metadata values (GGUF specification, `gguf_metadata_value_type`)."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


SCALARS: dict[ValueType, str] = {
    ValueType.U8: "u1",
    ValueType.I8: "i1",
    ValueType.U16: "u2",
    ValueType.I16: "i2",
    ValueType.U32: "u4",
    ValueType.I32: "i4",
    ValueType.F32: "f4",
    ValueType.BOOL: "u1",
    ValueType.U64: "u8",
    ValueType.I64: "i8",
    ValueType.F64: "f8",
}
"""numpy type codes of the fixed-size values, without byte order."""

_INTEGERS = {
    ValueType.U8,
    ValueType.I8,
    ValueType.U16,
    ValueType.I16,
    ValueType.U32,
    ValueType.I32,
    ValueType.U64,
    ValueType.I64,
}
_NUMBERS = _INTEGERS | {ValueType.F32, ValueType.F64}
_LISTED = 200  # characters of a string; a chat template has thousands


@dataclass(frozen=True, slots=True)
class Array:
    """An array that stays in the file until somebody asks: `count` elements in `length` bytes at `offset`."""

    source: ByteSource
    order: str
    element: ValueType
    count: int
    offset: int
    length: int
    inner: tuple[Array, ...] = ()

    def numbers(self) -> npt.NDArray[np.generic]:
        """The elements of a fixed-size type as a native-endian numpy array of shape (count,)."""
        raw = self.source.read(self.offset, self.length)
        stored = np.frombuffer(raw, dtype=np.dtype(self.order + SCALARS[self.element]))
        values: npt.NDArray[np.generic] = stored.astype(stored.dtype.newbyteorder("="), copy=False)
        return values

    def strings(self) -> list[bytes]:
        """The elements of a string array, as the bytes that the file holds."""
        raw = self.source.read(self.offset, self.length)
        unpack = struct.Struct(self.order + "Q").unpack_from
        found, at = [], 0
        for _ in range(self.count):
            (size,) = unpack(raw, at)
            found.append(raw[at + 8 : at + 8 + size])
            at += 8 + size
        return found


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata value: a number, a bool, the bytes of a string, or an Array."""

    type: ValueType
    data: int | float | bool | bytes | Array

    @property
    def type_name(self) -> str:
        """How error messages call the type."""
        if isinstance(self.data, Array):
            return f"array of {self.data.element.name.lower()} [{self.data.count}]"
        return self.type.name.lower()


class Metadata(Mapping[str, Value]):
    """The key-value pairs of one header. Getters name key, expected and found type when they refuse."""

    def __init__(self, values: Mapping[str, Value], file: str) -> None:
        self._values = dict(values)
        self.file = file

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of any width. Raises MetadataError when absent (without default) or of another type."""
        value = self._scalar(key, "an integer", _INTEGERS, default)
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite float, or an integer as one; F32 values keep their shortest decimal form (1e-6, not 9.99e-7)."""
        value = self._scalar(key, "a number", _NUMBERS, default)
        stored = self._values.get(key)
        number = float(str(np.float32(value))) if stored and stored.type is ValueType.F32 else float(value)
        if not math.isfinite(number):
            raise MetadataError(f"{self.file}: metadata key {key} should be a finite number, found {number}")
        return number

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """A bool."""
        return bool(self._scalar(key, "a bool", {ValueType.BOOL}, default))

    def string(self, key: str, default: str | None = None) -> str:
        """A string, decoded as UTF-8."""
        value = self._scalar(key, "a string", {ValueType.STRING}, default)
        return value if isinstance(value, str) else self._text(key, _raw(value))

    def strings(self, key: str) -> list[str]:
        """An array of strings, decoded as UTF-8."""
        return [self._text(f"{key}[{i}]", raw) for i, raw in enumerate(self.raw_strings(key))]

    def raw_strings(self, key: str) -> list[bytes]:
        """An array of strings as bytes; a token list need not be valid text."""
        return self._array(key, "an array of strings", {ValueType.STRING}).strings()

    def numbers(self, key: str) -> npt.NDArray[np.generic]:
        """An array of numbers or bools, shape (count,)."""
        return self._array(key, "an array of numbers", set(SCALARS)).numbers()

    def integer_list(self, key: str) -> list[int]:
        """An array of integers; a single integer counts as a list of one."""
        if not isinstance(self._required(key).data, Array):
            return [self.integer(key)]
        return [int(x) for x in self._array(key, "an array of integers", _INTEGERS).numbers()]

    def is_array(self, key: str) -> bool:
        """Whether the key is there and holds an array."""
        value = self._values.get(key)
        return value is not None and isinstance(value.data, Array)

    def listed(self) -> dict[str, str | int | float | bool]:
        """Every key with its value, to be shown: long strings are cut, arrays are their type and length."""
        return {key: self._shown(key, value) for key, value in self._values.items()}

    def _shown(self, key: str, value: Value) -> str | int | float | bool:
        if isinstance(value.data, Array):
            return value.type_name
        if isinstance(value.data, bytes):
            text = value.data.decode(errors="backslashreplace")
            return text if len(text) <= _LISTED else f"{text[:_LISTED]}... ({len(text)} characters)"
        if isinstance(value.data, float):
            return self.number(key) if math.isfinite(value.data) else str(value.data)
        return value.data

    def _required(self, key: str) -> Value:
        value = self._values.get(key)
        if value is None:
            raise MetadataError(f"{self.file}: metadata key {key} is missing")
        return value

    def _array(self, key: str, wanted: str, elements: set[ValueType]) -> Array:
        value = self._required(key)
        if not isinstance(value.data, Array) or value.data.element not in elements:
            raise MetadataError(f"{self.file}: metadata key {key} should be {wanted}, found {value.type_name}")
        if value.data.count > LIST.most:  # to skip an array costs nothing, to have it in Python does
            raise MetadataError(
                f"{self.file}: metadata key {key} has {value.data.count} entries, allowed are {LIST.most}"
            )
        return value.data

    def _scalar(
        self, key: str, wanted: str, types: set[ValueType], default: float | str | None
    ) -> int | float | bytes | str:
        if key not in self._values and default is not None:
            return default
        value = self._required(key)
        if value.type not in types or isinstance(value.data, Array):
            raise MetadataError(f"{self.file}: metadata key {key} should be {wanted}, found {value.type_name}")
        return value.data

    def _text(self, key: str, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise MetadataError(f"{self.file}: metadata key {key} is not valid UTF-8 (byte {e.start})") from e


def _raw(value: int | float | bytes) -> bytes:
    assert isinstance(value, bytes)  # _scalar has checked the type
    return value
