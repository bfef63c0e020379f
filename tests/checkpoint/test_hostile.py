"""Broken and hostile files: each one is refused as a FileError that says what is wrong and where."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import ARRAY, INT32, STRING, UINT8, UINT32, Array, Raw, TensorSpec, Text, build

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError

HUGE = 1 << 63


def deep_array(depth: int) -> Raw:
    """An array in an array in an array ... around one byte."""
    head = struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQ", UINT8, 1)
    return Raw(head + b"\x07")


def one(key: str = "k", kind: int = UINT8, content: object = 1) -> bytes:
    return build([(key, kind, content)])


FILES: dict[str, tuple[bytes, str]] = {
    # Counts and lengths.
    "array of 2^63": (
        one("k", ARRAY, Array(UINT32, [], count=HUGE)),
        r"metadata key k: array length 9223372036854775808",
    ),
    "array beyond the end": (one("k", ARRAY, Array(UINT32, [1], count=1000)), r"array length 1000 needs 4000 bytes"),
    "array of 2^62 bytes": (one("k", ARRAY, Array(UINT8, [], count=1 << 62)), r"array length \d+ needs \d+ bytes"),
    "array whose bytes wrap": (
        one("k", ARRAY, Array(gb.UINT64, [], count=1 << 61)),
        r"needs 18446744073709551616 bytes",
    ),
    "string of 2^63": (
        one("k", STRING, Text(b"abc", HUGE)),
        r"metadata key k: string length 9223372036854775808 exceeds",
    ),
    "string beyond the end": (one("k", STRING, Text(b"abc", 1000)), r"string length 1000 needs 1000 bytes"),
    "strings beyond the limit": (one("k", ARRAY, Array(STRING, ["a"], count=1 << 40)), r"string count \d+ exceeds"),
    "strings beyond the end": (
        one("k", ARRAY, Array(STRING, ["a"], count=1000)),
        r"string count 1000 needs 8000 bytes",
    ),
    "a string of 2^63 in an array": (
        one("k", ARRAY, Array(STRING, ["a", Text(b"b", HUGE)])),
        r"string length \d{19} exceeds",
    ),
    "a string beyond the end in an array": (
        one("k", ARRAY, Array(STRING, ["a", Text(b"b", 99)])),
        "string length 99 needs",
    ),
    "tensor count 2^63": (build(tensor_count=HUGE), r"tensor count 9223372036854775808 exceeds the limit"),
    "metadata count 2^63": (build(metadata_count=HUGE), r"metadata count 9223372036854775808 exceeds the limit"),
    "more tensors than bytes": (build(tensor_count=1000), r"tensor count 1000 needs 25000 bytes"),
    "more keys than bytes": (build(metadata_count=1000), r"metadata count 1000 needs 13000 bytes"),
    "one key too many": (build([("k", UINT8, 1)], metadata_count=2) + bytes(8), "empty metadata key"),
    "a key too long": (build([(b"k" * 70_000, UINT8, 1)]), r"string length 70000 exceeds the limit 65535"),
    # Nesting.
    "array 5000 deep": (build([("k", ARRAY, deep_array(5000))]), "nested deeper than 4"),
    "array 5 deep": (build([("k", ARRAY, deep_array(5))]), "nested deeper than 4"),
    "200 000 inner arrays": (
        build([("k", ARRAY, Raw(struct.pack("<IQ", ARRAY, 200_000) + struct.pack("<IQ", UINT8, 0) * 200_000))]),
        "array count 200000 exceeds the limit",
    ),
    "many arrays of many arrays": (
        build(
            [
                (f"k{i}", ARRAY, Raw(struct.pack("<IQ", ARRAY, 60_000) + struct.pack("<IQ", UINT8, 0) * 60_000))
                for i in range(2)
            ]
        ),
        "more than 100000 arrays inside arrays",
    ),
    # Keys and values.
    "duplicate key": (build([("twice", UINT8, 1), ("twice", UINT8, 2)]), "metadata key twice appears twice"),
    "empty key": (build([("", UINT8, 1)]), "empty metadata key"),
    "bad UTF-8 key": (build([(b"\xff\xfe", UINT8, 1)]), r"metadata key b'\\xff\\xfe' is not valid UTF-8 \(byte 0\)"),
    "bool 7": (build([("flag", gb.BOOL, 7)]), "metadata key flag: bool is 7"),
    "value type 13": (build([("k", 13, Raw(b""))]), r"metadata key k: value type 13 is unknown"),
    "element type 99": (build([("k", ARRAY, Array(99, []))]), r"metadata key k: value type 99 is unknown"),
    # Tensor table.
    "a million dimensions": (build([], [TensorSpec("t", (1,), n_dims=10**6)]), "tensor t: 1000000 dimensions"),
    "five dimensions": (build([], [TensorSpec("t", (1, 1, 1, 1, 1))]), "tensor t: 5 dimensions, allowed are 4"),
    "dimensions that wrap to 0": (
        build([], [TensorSpec("t", (1 << 32, 1 << 32), data=b"")]),
        "18446744073709551616 elem",
    ),
    "dimensions that wrap to 4": (
        build([], [TensorSpec("t", ((1 << 62) + 1, 4), data=b"")]),
        r"tensor t: shape .* elements",
    ),
    "a product that wraps in bytes": (build([], [TensorSpec("t", (1 << 62,), data=b"")]), r"truncated: tensor t needs"),
    "dimension 2^64-1": (build([], [TensorSpec("t", ((1 << 64) - 1, 0), data=b"")]), "tensor t: shape"),
    "more elements than bytes": (
        build([], [TensorSpec("t", (1 << 40,), data=b"abcd")]),
        r"tensor t needs 4398046511104",
    ),
    "duplicate tensor": (build([], [TensorSpec("t"), TensorSpec("t")]), "tensor t appears twice"),
    "overlap": (
        build([], [TensorSpec("a", (64,)), TensorSpec("b", (64,), offset=32)]),
        "tensor b starts at data offset 32",
    ),
    "same offset": (build([], [TensorSpec("a"), TensorSpec("b", offset=0)]), r"before the end \(4\) of a"),
    "out of order": (build([], [TensorSpec("a", offset=32), TensorSpec("b", offset=0)]), "must be in order"),
    "misaligned": (build([], [TensorSpec("a"), TensorSpec("b", offset=36)]), "tensor b .* 36, not a multiple of 32"),
    "offset beyond the end": (build([], [TensorSpec("a", offset=1 << 60)]), r"tensor a needs 4 bytes .* 0 are present"),
    "offset 2^64-32": (build([], [TensorSpec("a", offset=(1 << 64) - 32)]), r"tensor a needs 4 bytes .* 0 are present"),
    "unknown type beyond the end": (
        build([], [TensorSpec("a", (1,), 42, offset=1 << 60), TensorSpec("b", (1,), offset=1 << 61)]),
        "truncated: tensor a",
    ),
    "empty tensor name": (build([], [TensorSpec("")]), "empty tensor name"),
    "name of 300 characters": (build([], [TensorSpec("n" * 300)]), r"string length 300 exceeds the limit 255"),
    "bad UTF-8 tensor name": (
        build([], [TensorSpec(b"a\xff")]),
        r"tensor name b'a\\xff' is not valid UTF-8 \(byte 1\)",
    ),
    "K-quant on 896 columns": (
        build([], [TensorSpec("t", (896, 2), gb.Q4_K)]),
        "896 is not a multiple of Q4_K's block size 256",
    ),
    "Q8_0 scalar": (build([], [TensorSpec("t", (), gb.Q8_0)]), "1 is not a multiple of Q8_0's block size 32"),
    # Alignment.
    "alignment 0": (build(alignment=0), r"general.alignment is 0 \(u32\)"),
    "alignment 3": (build(alignment=3), r"general.alignment is 3 \(u32\)"),
    "alignment 4": (build(alignment=4), r"general.alignment is 4 \(u32\)"),
    "alignment 2^31": (one("general.alignment", UINT32, 1 << 31), r"general.alignment is 2147483648"),
    "alignment as text": (one("general.alignment", STRING, "32"), r"general.alignment is string"),
    "alignment as u8": (one("general.alignment", UINT8, 32), r"general.alignment is 32 \(u8\), allowed is a u32"),
    "alignment as array": (one("general.alignment", ARRAY, Array(UINT32, [32])), r"array of u32 \[1\]"),
    # Something else altogether.
    "empty file": (b"", "not a GGUF file: the file is empty"),
    "HTML page": (b"<!DOCTYPE html><html><body>404</body></html>", "not a GGUF file: it is an HTML page"),
    "indented HTML page": (b"\n  <html lang=en>", "it is an HTML page"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is a Git LFS pointer"),
    "safetensors": (struct.pack("<Q", 40) + b'{"a":{"dtype":"F32"}}', "it looks like a safetensors file"),
    "zip": (b"PK\x03\x04" + bytes(60), "it is a zip archive"),
    "one byte": (b"G", r"it starts with b'G' instead of b'GGUF'"),
    "magic reversed": (build(magic=b"FUGG"), r"it starts with b'FUGG'"),
    "magic alone": (b"GGUF", "truncated header: 4 bytes, no version"),
    "version 0": (build(version=0), r"GGUF version 0 is not supported \(known are 2 and 3\)"),
    "version 1": (build(version=1), r"GGUF version 1 is not supported \(version 1 is obsolete\)"),
    "version 1, big-endian": (build(version=1, endian=">"), r"GGUF version 1 is not supported"),
    "version 4": (build(version=4), r"GGUF version 4 is not supported"),
}


@pytest.mark.parametrize("name", FILES)
def test_is_refused_by_name(tmp_path: Path, name: str) -> None:
    data, message = FILES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match=message) as e:
            open_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in e.value.message
    assert peak < (32 << 20)  # what a file asks for is not what it gets
    assert len(e.value.message) < 2000


def test_truncated_header_at_every_byte(tmp_path: Path) -> None:
    metadata = small.llama_metadata() | {
        "words": (ARRAY, Array(STRING, ["one", "two", ""])),
        "numbers": (ARRAY, Array(INT32, [1, 2, 3])),
        "nested": (ARRAY, Array(ARRAY, [Array(UINT8, [1, 2]), Array(STRING, ["x"])])),
    }
    whole = small.encode(metadata, [small.tensor("a.weight", 2, 3), TensorSpec("b.weight", (32,), gb.Q8_0)])
    end = len(whole) - gb.pad(34, 32)  # the padding after the last tensor may be missing
    path = tmp_path / "cut.gguf"
    for size in range(end):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError):
            open_checkpoint(path)
    path.write_bytes(whole[:end])
    open_checkpoint(path).close()


def test_truncated_data_names_tensor_and_bytes(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1000)
    with pytest.raises(FileError) as e:
        open_checkpoint(path)
    needed = small.VOCAB * small.HIDDEN * 4
    assert f"truncated: tensor output.weight needs {needed} bytes" in e.value.message
    assert f"{needed - 1000} are present (file size {size - 1000})" in e.value.message
    assert "incomplete" in str(e.value.hint)


def test_a_file_cut_after_opening_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    with open_checkpoint(path) as checkpoint:
        with path.open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(FileError, match=r"ends at byte 4096|ends at byte \d+, \d+ bytes before the end of a read"):
            checkpoint.read(checkpoint.tensors["output.weight"])


@pytest.mark.parametrize(
    ("cut", "expected"),
    [(3, "3 bytes"), (7, "no version"), (15, "truncated: 8 bytes wanted"), (23, "truncated: 8 bytes wanted, 7 remain")],
)
def test_preamble_cut_short_says_so(tmp_path: Path, cut: int, expected: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build()[:cut])
    with pytest.raises(FileError, match=expected if cut > 3 else "it starts with b'GGU'"):
        open_checkpoint(path)
