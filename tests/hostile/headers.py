"""Malformed headers: every kind that llama.cpp's own tests, advisories and bug reports have, and what fuzzing found."""

from __future__ import annotations

import struct

from hostile.case import Table
from support.gguf_bytes import ARRAY, BOOL, INT32, STRING, UINT8, UINT32, UINT64, Array, Raw, TensorSpec, Text, build

HUGE = 1 << 63
CASES = Table()
_add = CASES.put


def one(key: str = "k", kind: int = UINT8, content: object = 1) -> bytes:
    """A file with one metadata pair."""
    return build([(key, kind, content)])


def deep_array(depth: int) -> Raw:
    """An array in an array in an array ... around one byte."""
    head = struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQ", UINT8, 1)
    return Raw(head + b"\x07")


def many_arrays(count: int) -> Raw:
    """An array of `count` empty arrays."""
    return Raw(struct.pack("<IQ", ARRAY, count) + struct.pack("<IQ", UINT8, 0) * count)


def _preamble() -> None:
    kind = "preamble"
    _add(kind, "empty file", lambda: b"", "not a GGUF file: the file is empty")
    _add(kind, "one byte", lambda: b"G", r"it starts with b'G' instead of b'GGUF'")
    _add(kind, "magic reversed", lambda: build(magic=b"FUGG"), r"starts with b'FUGG'", llama_cpp=("HEADER_BAD_MAGIC",))
    _add(kind, "magic alone", lambda: b"GGUF", "truncated header: 4 bytes, no version")
    _add(kind, "counts cut off", lambda: build()[:15], "truncated: 8 bytes wanted, 7 remain")
    _add(kind, "HTML page", lambda: b"<!DOCTYPE html><html><body>404</body></html>", "it is an HTML page")
    _add(kind, "indented HTML page", lambda: b"\n  <html lang=en>", "it is an HTML page")
    _add(
        kind,
        "Git LFS pointer",
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "it is a Git LFS pointer",
    )
    _add(kind, "safetensors", lambda: struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"}}', "looks like a safetensors file")
    _add(kind, "zip", lambda: b"PK\x03\x04" + bytes(60), "it is a zip archive")
    for version, name in ((0, ("HEADER_BAD_VERSION_0",)), (4, ("HEADER_BAD_VERSION_FUTURE",)), (0x30000, ())):
        shown = 3 if version == 0x30000 else version  # the low half is empty: big-endian by the rule for that
        message = rf"GGUF version {version} is not supported \(known are 2 and 3\)"
        _add(
            kind,
            f"version {version}",
            lambda version=version: build(version=version),
            message if shown != 3 else r"GGUF version 768 is not supported",
            llama_cpp=name,
        )
    obsolete = r"GGUF version 1 is not supported \(version 1 is obsolete\)"
    _add(kind, "version 1", lambda: build(version=1), obsolete, llama_cpp=("HEADER_BAD_VERSION_1",))
    _add(kind, "version 1, big-endian", lambda: build(version=1, endian=">"), obsolete)
    _add(kind, "version 2", lambda: build([("k", UINT8, 1)], version=2), None)
    _add(kind, "big-endian", lambda: build([("k", UINT32, 1)], [TensorSpec("a")], endian=">"), None)
    _add(kind, "no keys, no tensors", build, None, llama_cpp=("HEADER_EMPTY",))


def _counts() -> None:
    kind = "counts and lengths"
    too_many = r"count is \d{19,20}, allowed are 0 to 100000"
    _add(kind, "tensor count 2^63", lambda: build(tensor_count=HUGE), f"tensor {too_many}")
    _add(
        kind,
        "tensor count 2^64-1",
        lambda: build(tensor_count=(1 << 64) - 1),
        f"tensor {too_many}",
        llama_cpp=("HEADER_BAD_N_TENSORS",),
    )
    _add(kind, "metadata count 2^63", lambda: build(metadata_count=HUGE), f"metadata {too_many}")
    _add(
        kind,
        "metadata count 2^64-1",
        lambda: build(metadata_count=(1 << 64) - 1),
        f"metadata {too_many}",
        llama_cpp=("HEADER_BAD_N_KV",),
    )
    _add(kind, "more tensors than bytes", lambda: build(tensor_count=1000), r"tensor count 1000 needs 25000 bytes")
    _add(kind, "more keys than bytes", lambda: build(metadata_count=1000), r"metadata count 1000 needs 13000 bytes")
    _add(
        kind,
        "one key too many",
        lambda: build([("k", UINT8, 1)], metadata_count=2) + bytes(8),
        "metadata key length is 0, allowed are 1 to 65535",
    )
    _add(
        kind, "array of 2^63", lambda: one("k", ARRAY, Array(UINT32, [], count=HUGE)), r"array length is 9223372036\d+"
    )
    _add(
        kind,
        "array beyond the end",
        lambda: one("k", ARRAY, Array(UINT32, [1], count=1000)),
        r"metadata key k: array length 1000 needs 4000 bytes",
    )
    _add(
        kind,
        "array of 2^62 bytes",
        lambda: one("k", ARRAY, Array(UINT8, [], count=1 << 62)),
        r"array length \d+ needs \d+ bytes",
    )
    _add(
        kind,
        "array whose bytes wrap",
        lambda: one("k", ARRAY, Array(UINT64, [], count=1 << 61)),
        r"needs 18446744073709551616 bytes",
    )
    for name, length in (("2^63", HUGE), ("2^64-1", (1 << 64) - 1)):
        _add(
            kind,
            f"string of {name}",
            lambda length=length: one("k", STRING, Text(b"abc", length)),
            r"metadata key k: string length is \d+, allowed are 0 to 67108864",
        )
        _add(
            kind,
            f"key of {name}",
            lambda length=length: build([(Text(b"abc", length), UINT8, 1)]),
            r"metadata key length is \d+, allowed are 1 to 65535",
            llama_cpp=("KV_BAD_KEY_SIZE",),
        )
    _add(
        kind,
        "string beyond the end",
        lambda: one("k", STRING, Text(b"abc", 1000)),
        r"string length 1000 needs 1000 bytes",
    )
    _add(
        kind,
        "strings beyond the limit",
        lambda: one("k", ARRAY, Array(STRING, ["a"], count=1 << 40)),
        r"strings in arrays, all together is \d+, allowed are 0 to 2097152",
    )
    _add(
        kind,
        "strings beyond the end",
        lambda: one("k", ARRAY, Array(STRING, ["a"], count=1000)),
        r"all together 1000 needs 8000 bytes",
    )
    _add(
        kind,
        "a string of 2^63 in an array",
        lambda: one("k", ARRAY, Array(STRING, ["a", Text(b"b", HUGE)])),
        r"string length is \d{19}, allowed",
    )
    _add(
        kind,
        "a string beyond the end in an array",
        lambda: one("k", ARRAY, Array(STRING, ["a", Text(b"b", 99)])),
        "string length 99 needs",
    )
    _add(
        kind,
        "cut off in the metadata",
        lambda: build([("first", UINT8, 1), ("second", UINT32, 1)], metadata_count=2)[:61],
        r"metadata key second: truncated: 4 bytes wanted, 1 remain",
    )
    _add(
        kind,
        "cut off in the tensor table",
        lambda: build([], [TensorSpec("abc"), TensorSpec("def")])[:86],
        r"tensor def: truncated: 20 bytes wanted, \d+ remain",
    )


def _nesting() -> None:
    kind = "nesting"
    _add(
        kind,
        "arrays in an array",
        lambda: one("k", ARRAY, Array(ARRAY, [Array(UINT8, [1]), Array(STRING, ["a"])])),
        None,
    )
    _add(
        kind,
        "array 4 deep",
        lambda: build([("k", ARRAY, deep_array(4))]),
        None,
    )
    deep = "metadata key k: nesting of arrays is 5, allowed are 1 to 4"
    _add(kind, "array 5 deep", lambda: build([("k", ARRAY, deep_array(5))]), deep)
    _add(kind, "array 5000 deep", lambda: build([("k", ARRAY, deep_array(5000))]), deep)
    _add(
        kind,
        "200 000 inner arrays",
        lambda: build([("k", ARRAY, many_arrays(200_000))]),
        "arrays inside arrays, all together is 200000, allowed are 0 to 10000",
    )
    _add(
        kind,
        "many arrays of many arrays",
        lambda: build([(f"k{i}", ARRAY, many_arrays(6_000)) for i in range(2)]),
        "metadata key k1: arrays inside arrays, all together is 12000, allowed are 0 to 10000",
    )


def _keys() -> None:
    kind = "keys and values"
    every = [
        *((f"k{i}", i, 1) for i in range(8)),
        ("text", STRING, "t"),
        ("list", ARRAY, Array(STRING, ["a", ""])),
        *((f"k{i}", i, 1) for i in (10, 11, 12)),
    ]
    _add(kind, "a value of every type", lambda: build(every), None, llama_cpp=("KV_SUCCESS",))
    _add(
        kind,
        "a key twice",
        lambda: build([("twice", UINT8, 1), ("twice", UINT8, 2)]),
        "metadata key twice: appears twice",
        llama_cpp=("KV_DUPLICATE_KEY",),
    )
    _add(
        kind,
        "empty key",
        lambda: build([("", UINT8, 1)]),
        "metadata key length is 0, allowed are 1 to 65535",
        llama_cpp=("KV_EMPTY_KEY",),
    )
    _add(
        kind,
        "a key of 70 000 bytes",
        lambda: build([(b"k" * 70_000, UINT8, 1)]),
        r"metadata key length is 70000, allowed are 1 to 65535",
        why="the specification ends keys at 65,535 bytes",
    )
    _add(
        kind,
        "a long key in a message is cut",
        lambda: build([(b"k" * 60_000, 13, Raw(b""))]),
        r"metadata key k{80}\.\.\. \(60000 characters\): value type 13",
    )
    _add(
        kind,
        "key that is no UTF-8",
        lambda: build([(b"\xff\xfe", UINT8, 1)]),
        r"metadata key: b'\\xff\\xfe' is not valid UTF-8 \(byte 0\)",
        why="keys are text by the specification; bytes that are none can look like another key",
    )
    _add(
        kind,
        "NUL in a key",
        lambda: build([("a\0b", UINT8, 1)]),
        r"metadata key: b'a\\x00b' has a NUL character \(byte 1\)",
        why="C programs see the key end at the NUL: two readers, two keys",
    )
    bool_ = "metadata key flag: bool is 7, allowed are 0 and 1"
    reason = "llama.cpp takes every byte but 0 for true; readers of raw bytes differ"
    _add(kind, "bool 7", lambda: build([("flag", BOOL, 7)]), bool_, why=reason)
    _add(kind, "bool 7 in an array", lambda: one("flag", ARRAY, Array(BOOL, [0, 1, 7])), bool_, why=reason)
    for number in (13, 99, (1 << 32) - 1):
        names = ("KV_BAD_TYPE",) if number == 13 else ()
        message = rf"metadata key k: value type {number} is unknown"
        _add(kind, f"value type {number}", lambda n=number: build([("k", n, Raw(b"\0"))]), message, llama_cpp=names)
        _add(kind, f"element type {number}", lambda n=number: one("k", ARRAY, Array(n, [])), message, llama_cpp=names)


def _alignment() -> None:
    kind = "alignment"
    for value, names in (
        (0, ()),
        (3, ()),
        (13, ("KV_BAD_ALIGN", "TENSORS_BAD_ALIGN", "DATA_BAD_ALIGN")),
        (1 << 31, ()),
        ((1 << 32) - 1, ()),
    ):
        _add(
            kind,
            f"alignment {value}",
            lambda value=value: one("general.alignment", UINT32, value),
            rf"general.alignment is {value} \(u32\), allowed is a u32 power of two from 8 to 1048576",
            llama_cpp=names,
            why="padding of 2 GiB serves nobody; the cap is 1 MiB" if value == 1 << 31 else "",
        )
    for value in (1, 4):
        _add(
            kind,
            f"alignment {value}",
            lambda value=value: build([], [TensorSpec("a"), TensorSpec("b", (2,))], alignment=value),
            rf"general.alignment is {value} \(u32\)",
            why="the specification asks for a multiple of 8",
        )
    _add(
        kind,
        "alignment 64",
        lambda: build([], [TensorSpec("a"), TensorSpec("b", (2,))], alignment=64),
        None,
        llama_cpp=("TENSORS_CUSTOM_ALIGN", "DATA_CUSTOM_ALIGN"),
    )
    for name, value_type, value, message in (
        ("text", STRING, "32", "string"),
        ("u8", UINT8, 32, r"32 \(u8\), allowed is a u32"),
        ("i32", INT32, 32, r"32 \(i32\)"),
        ("u64", UINT64, 32, r"32 \(u64\)"),
        ("array", ARRAY, Array(UINT32, [32]), r"array of u32 \[1\]"),
    ):
        _add(
            kind,
            f"alignment as {name}",
            lambda value_type=value_type, value=value: one("general.alignment", value_type, value),
            rf"general.alignment is {message}",
            llama_cpp=("KV_WRONG_TYPE_ALIGN",) if name == "i32" else (),
        )
    _add(
        kind,
        "offsets made for alignment 8, file says 32",
        lambda: build([], [TensorSpec("a"), TensorSpec("b", offset=8)]),
        "tensor b starts at data offset 8, not a multiple of 32",
        llama_cpp=("TENSORS_INCONSISTENT_ALIGN", "DATA_INCONSISTENT_ALIGN"),
    )


for section in (_preamble, _counts, _nesting, _keys, _alignment):
    section()
