"""Well-formed files in both versions and byte orders read as what was written."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from support import gguf_bytes as gb
from support.gguf_bytes import TensorSpec

from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.checkpoint.header import Header, parse_header
from ggufmap.checkpoint.metadata import Array, ValueType
from ggufmap.checkpoint.source import LocalFile
from ggufmap.errors import FileError, UnsupportedError

NUMBERS: list[tuple[str, int, int | float]] = [
    ("n.u8", gb.UINT8, 200),
    ("n.i8", gb.INT8, -100),
    ("n.u16", gb.UINT16, 60_000),
    ("n.i16", gb.INT16, -30_000),
    ("n.u32", gb.UINT32, 4_000_000_000),
    ("n.i32", gb.INT32, -2_000_000_000),
    ("n.f32", gb.FLOAT32, -0.5),
    ("n.u64", gb.UINT64, (1 << 64) - 1),
    ("n.i64", gb.INT64, -(1 << 63)),
    ("n.f64", gb.FLOAT64, 1e300),
]
ARRAYS: list[tuple[str, int, list[Any]]] = [
    ("a.u8", gb.UINT8, [0, 255]),
    ("a.i8", gb.INT8, [-128, 127]),
    ("a.u16", gb.UINT16, [1, 65_535]),
    ("a.i16", gb.INT16, [-2, 3]),
    ("a.u32", gb.UINT32, [1, 2**32 - 1]),
    ("a.i32", gb.INT32, [-1, 2**31 - 1]),
    ("a.f32", gb.FLOAT32, [0.5, -2.0, 1e30]),
    ("a.bool", gb.BOOL, [1, 0, 1]),
    ("a.u64", gb.UINT64, [2**64 - 1]),
    ("a.i64", gb.INT64, [-(2**63), 5]),
    ("a.f64", gb.FLOAT64, [0.1]),
    ("a.empty", gb.INT32, []),
]


@contextmanager
def opened(path: Path, data: bytes, *, check: bool = True) -> Iterator[Checkpoint]:
    path.write_bytes(data)
    with open_checkpoint(path, check=check) as checkpoint:
        yield checkpoint


def header(path: Path) -> Header:
    source = LocalFile(path)
    try:
        return parse_header(source)
    finally:
        source.close()


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path: Path, version: int, endian: str) -> None:
    entries: list[gb.Entry] = [
        *NUMBERS,
        ("t.yes", gb.BOOL, 1),
        ("t.no", gb.BOOL, 0),
        ("t.text", gb.STRING, "grüße 🦙"),
        ("t.empty", gb.STRING, ""),
        *((key, gb.ARRAY, gb.Array(kind, items)) for key, kind, items in ARRAYS),
        ("a.text", gb.ARRAY, gb.Array(gb.STRING, ["a", "", "zß"])),
    ]
    with opened(tmp_path / "x.gguf", gb.build(entries, version=version, endian=endian)) as checkpoint:
        meta = checkpoint.metadata
        assert list(meta) == [key for key, *_ in entries]  # type: ignore[misc]
        for key, kind, expected in NUMBERS:
            assert meta[key].type == kind
            assert meta.number(key) == expected if "f" in key else meta.integer(key) == expected
        assert meta.boolean("t.yes") is True
        assert meta.boolean("t.no") is False
        assert meta.string("t.text") == "grüße 🦙"
        assert meta.string("t.empty") == ""
        for key, _, items in ARRAYS:
            found = meta.numbers(key)
            assert found.dtype.isnative
            assert found.tolist() == (np.array(items, np.float32).tolist() if key == "a.f32" else items)
        assert meta.strings("a.text") == ["a", "", "zß"]
        assert checkpoint.splits[0].header.version == version
        assert checkpoint.splits[0].header.order == endian


@pytest.mark.parametrize("endian", ["<", ">"])
def test_plain_tensor_data_in_both_byte_orders(tmp_path: Path, endian: Literal["<", ">"]) -> None:
    import torch

    from ggufmap.stream.sources import read_values

    floats = np.array([[1.5, -2.25, 3e-8], [65504.0, 0.0, -0.0]], dtype=np.float32)
    stored = floats.astype(np.dtype(np.float32).newbyteorder(endian))
    halves = floats.astype(np.float16)
    brains = torch.from_numpy(floats).bfloat16()
    bits = brains.view(torch.int16).numpy().astype(np.dtype(np.int16).newbyteorder(endian))
    doubles = floats.astype(np.dtype(np.float64).newbyteorder(endian))
    words = np.array([[1, -2, 2**40]], dtype=np.dtype(np.int64).newbyteorder(endian))
    tensors = [
        TensorSpec("f32", (3, 2), gb.F32, stored.tobytes()),
        TensorSpec("f16", (3, 2), gb.F16, halves.astype(np.dtype(np.float16).newbyteorder(endian)).tobytes()),
        TensorSpec("bf16", (3, 2), gb.BF16, bits.tobytes()),
        TensorSpec("f64", (3, 2), 28, doubles.tobytes()),
        TensorSpec("i64", (3, 1), 27, words.tobytes()),
        TensorSpec("i8", (3,), 24, b"\x01\xff\x7f"),
    ]
    expected = {
        "f32": torch.from_numpy(floats),
        "f16": torch.from_numpy(halves),
        "bf16": brains,
        "f64": torch.from_numpy(floats).double(),
        "i64": torch.tensor([[1, -2, 2**40]]),
        "i8": torch.tensor([1, -1, 127], dtype=torch.int8),
    }
    with opened(tmp_path / "x.gguf", gb.build([], tensors, endian=endian)) as checkpoint:
        for name, tensor in expected.items():
            found = read_values(checkpoint, checkpoint.tensors[name], torch.bfloat16)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor), name


def test_quantised_data_in_a_big_endian_file_is_refused_with_a_way_out(tmp_path: Path) -> None:
    import torch

    from ggufmap.stream.sources import read_values

    data = gb.build([], [TensorSpec("q", (32, 2), gb.Q8_0)], endian=">")
    with (
        opened(tmp_path / "x.gguf", data) as checkpoint,
        pytest.raises(UnsupportedError, match="tensor q is Q8_0") as e,
    ):
        read_values(checkpoint, checkpoint.tensors["q"], torch.float32)
    assert "gguf_convert_endian" in str(e.value.hint)


def test_shapes_are_in_numpy_order_and_data_where_it_lies(tmp_path: Path) -> None:
    tensors = [
        TensorSpec("matrix", (3, 2), gb.F32, bytes(range(24))),
        TensorSpec("stack", (32, 4, 5, 6), gb.Q8_0),
        TensorSpec("vector", (4,), gb.F16, b"12345678"),
        TensorSpec("scalar", (), gb.F32, b"abcd"),
    ]
    with opened(tmp_path / "x.gguf", gb.build([], tensors)) as checkpoint:
        found = checkpoint.tensors
        assert [t.shape for t in found.values()] == [(2, 3), (6, 5, 4, 32), (4,), (1,)]
        assert [t.rows for t in found.values()] == [2, 120, 1, 1]
        assert [t.columns for t in found.values()] == [3, 32, 4, 1]
        assert [t.nbytes for t in found.values()] == [24, 120 * 34, 8, 4]
        assert checkpoint.read(found["matrix"]) == bytes(range(24))
        assert checkpoint.read(found["vector"]) == b"12345678"
        assert checkpoint.read(found["scalar"]) == b"abcd"


@pytest.mark.parametrize("alignment", [8, 64, 4096, 1 << 20])
def test_alignment_is_honoured(tmp_path: Path, alignment: int) -> None:
    tensors = [TensorSpec("a", (1,), data=b"AAAA"), TensorSpec("b", (1,), data=b"BBBB")]
    with opened(tmp_path / "x.gguf", gb.build([], tensors, alignment=alignment)) as checkpoint:
        assert [checkpoint.read(t) for t in checkpoint.tensors.values()] == [b"AAAA", b"BBBB"]
        assert all(t.offset % alignment == 0 for t in checkpoint.tensors.values())


def test_a_header_without_tensors_or_keys_is_a_gguf(tmp_path: Path) -> None:
    with opened(tmp_path / "x.gguf", gb.build()) as checkpoint:
        assert not checkpoint.tensors
        assert not checkpoint.metadata


def test_zero_dimension_parses_and_holds_nothing(tmp_path: Path) -> None:
    tensors = [TensorSpec("none", (4, 0)), TensorSpec("some", (1,), data=b"abcd")]
    with opened(tmp_path / "x.gguf", gb.build([], tensors)) as checkpoint:
        none = checkpoint.tensors["none"]
        assert (none.shape, none.elements, none.nbytes, none.rows) == ((0, 4), 0, 0, 0)
        assert checkpoint.read(none) == b""
        assert checkpoint.read(checkpoint.tensors["some"]) == b"abcd"


def test_gaps_between_tensors_are_counted(tmp_path: Path) -> None:
    tensors = [TensorSpec("a", (1,), data=b"a" * 4), TensorSpec("b", (1,), data=b"b" * 4, offset=96)]
    path = tmp_path / "x.gguf"
    path.write_bytes(gb.build([], tensors) + bytes(64))
    assert header(path).gap_bytes == 64
    path.write_bytes(gb.build([], [TensorSpec("a"), TensorSpec("b")]))
    assert header(path).gap_bytes == 0


@pytest.mark.parametrize(("id", "name"), [(4, "Q4_2"), (36, "IQ4_NL_4_4"), (43, "unknown_43"), (153, "IQ2_KT")])
def test_unreadable_types_leave_the_file_readable(tmp_path: Path, id: int, name: str) -> None:
    tensors = [
        TensorSpec("before", (1,), data=b"abcd"),
        TensorSpec("odd", (100,), id, bytes(50)),
        TensorSpec("after", (1,), data=b"wxyz"),
        TensorSpec("last", (7,), id, bytes(10)),
    ]
    with opened(tmp_path / "x.gguf", gb.build([], tensors)) as checkpoint:
        odd = checkpoint.tensors["odd"]
        assert odd.type.name == name
        assert odd.nbytes == 64  # the way to the next tensor: all that can be said
        assert checkpoint.read(checkpoint.tensors["after"]) == b"wxyz"
        for request in (None, slice(0, 1)):
            with pytest.raises(UnsupportedError, match=rf"tensor odd has ggml type {name} \(id {id}\)"):
                checkpoint.read(odd, request)


def q2_0(block: int, *rows: int, last: int = 0) -> bytes:
    """Tensors of type 42, 256 columns each, with blocks of `block` values, and an F32 one between them."""
    size = 2 + block // 4
    tensors = [TensorSpec(f"t{i}", (256, n), 42, bytes(n * 256 // block * size)) for i, n in enumerate(rows)]
    end = [TensorSpec("end", (256, last), 42, bytes(last * 256 // block * size))] if last else []
    return gb.build([], [*tensors, TensorSpec("plain", (8,), data=b"abcd" * 8), *end])


@pytest.mark.parametrize(("rows", "last"), [((9,), 0), ((9, 1), 0), ((), 5), ((1, 40), 3)])
def test_type_42_is_a_fork_s_where_the_offsets_say_so(tmp_path: Path, rows: tuple[int, ...], last: int) -> None:
    """llama.cpp's Q2_0 has blocks of 64 values; a fork had used the id for blocks of 128 before."""
    with opened(tmp_path / "a.gguf", q2_0(64, *rows, last=last)) as checkpoint:
        assert {t.type.name for t in checkpoint.tensors.values()} == {"Q2_0", "F32"}
        assert all(t.nbytes == math.prod(t.shape) // 64 * 18 for t in checkpoint.tensors.values() if t.name != "plain")
    with opened(tmp_path / "b.gguf", q2_0(128, *rows, last=last)) as checkpoint:
        assert {t.type.name for t in checkpoint.tensors.values()} == {"Q2_0_128", "F32"}
        assert checkpoint.read(checkpoint.tensors["plain"]) == b"abcd" * 8
        odd = next(t for t in checkpoint.tensors.values() if t.name != "plain")
        with pytest.raises(UnsupportedError, match=r"Q2_0_128 \(id 42\): a fork's Q2_0, with blocks of 128"):
            checkpoint.read(odd)


@pytest.mark.parametrize("cut", [1, 32, 200])
def test_a_truncated_file_of_type_42_is_truncated(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(q2_0(64, last=20)[:-cut])
    with pytest.raises(FileError, match="truncated: tensor end needs 1440 bytes"):
        open_checkpoint(path)


def test_string_arrays_stay_in_the_file_until_asked_for(tmp_path: Path) -> None:
    """Opening keeps of an array only where it lies: its strings are read when somebody asks."""
    words = [b"\xff\xfe", b"~here~", b"x" * 100_000]
    path = tmp_path / "x.gguf"
    entry = ("tokenizer.ggml.tokens", gb.ARRAY, gb.Array(gb.STRING, [*words, *[b"t"] * 300_000]))
    path.write_bytes(gb.build([entry, ("after", gb.UINT8, 7)]))
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20  # the reading window; 300 000 decoded strings would be ten times as much
    with checkpoint:
        value = checkpoint.metadata["tokenizer.ggml.tokens"].data
        assert isinstance(value, Array)
        assert (value.element, value.count) == (ValueType.STRING, 300_003)
        assert checkpoint.metadata.integer("after") == 7
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(b"~here~"))
            file.write(b"~THERE")
        assert checkpoint.metadata.raw_strings("tokenizer.ggml.tokens")[:3] == [words[0], b"~THERE", words[2]]


def test_nested_arrays_are_read(tmp_path: Path) -> None:
    inner = [gb.Array(gb.INT16, [1, 2]), gb.Array(gb.INT16, []), gb.Array(gb.INT16, [3])]
    strings = gb.Array(gb.ARRAY, [gb.Array(gb.STRING, ["a", "bc"])])
    entries = [("nested", gb.ARRAY, gb.Array(gb.ARRAY, inner)), ("deeper", gb.ARRAY, gb.Array(gb.ARRAY, [strings]))]
    with opened(tmp_path / "x.gguf", gb.build(entries)) as checkpoint:
        nested = checkpoint.metadata["nested"].data
        assert isinstance(nested, Array)
        assert [x.numbers().tolist() for x in nested.inner] == [[1, 2], [], [3]]
        deeper = checkpoint.metadata["deeper"].data
        assert isinstance(deeper, Array)
        assert deeper.inner[0].inner[0].strings() == [b"a", b"bc"]


@pytest.mark.parametrize("size", [65_528, 65_536, 65_544, 1 << 20, (1 << 20) + 1])
def test_values_across_the_reading_window(tmp_path: Path, size: int) -> None:
    """The parser reads by windows of 64 KiB and 1 MiB: nothing is lost where one ends."""
    words = [b"w" * (i % 7) for i in range(20_000)]
    entries: list[gb.Entry] = [
        ("pad", gb.STRING, b"p" * size),
        ("words", gb.ARRAY, gb.Array(gb.STRING, words)),
        ("long", gb.ARRAY, gb.Array(gb.STRING, [b"q" * (size + 3), b"end"])),
        ("numbers", gb.ARRAY, gb.Array(gb.UINT64, range(20_000))),
        ("last", gb.UINT16, 513),
    ]
    with opened(tmp_path / "x.gguf", gb.build(entries, [TensorSpec("t", (1,), data=b"data")])) as checkpoint:
        meta = checkpoint.metadata
        assert len(meta.string("pad")) == size
        assert meta.raw_strings("words") == words
        assert [len(x) for x in meta.raw_strings("long")] == [size + 3, 3]
        assert meta.numbers("numbers").tolist() == list(range(20_000))
        assert meta.integer("last") == 513
        assert checkpoint.read(checkpoint.tensors["t"]) == b"data"


def test_a_real_file_reads_as_gguf_py_reads_it(llama_cpp: Path) -> None:
    import gguf

    path = llama_cpp / "models" / "ggml-vocab-llama-spm.gguf"
    reader = gguf.GGUFReader(path)
    with open_checkpoint(path) as checkpoint:
        meta = checkpoint.metadata
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert list(meta) == list(fields)
        for key, field in fields.items():
            value = meta[key]
            if isinstance(value.data, Array):
                found = meta.strings(key) if value.data.element is ValueType.STRING else meta.numbers(key).tolist()
            elif value.type is ValueType.STRING:
                found = meta.string(key)
            else:
                found = value.data
            assert found == field.contents(), key


def test_header_without_its_data_opens_when_told_so(qwen_header: Path) -> None:
    with pytest.raises(FileError, match=r"truncated: tensor \S+ needs \d+ bytes at offset \d+, \d+ are present"):
        open_checkpoint(qwen_header)
    with open_checkpoint(qwen_header, check=False) as checkpoint:
        assert checkpoint.architecture == "qwen2"
        assert len(checkpoint.tensors) == 339
        assert checkpoint.tensors["blk.27.attn_q.bias"].shape == (3584,)
