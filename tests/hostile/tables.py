"""Malformed tensor tables: shapes, types, offsets, names, and data that is not there."""

from __future__ import annotations

from typing import Any

from hostile.case import Table
from support import gguf_bytes as gb
from support.gguf_bytes import TensorSpec, build

CASES = Table()
_add = CASES.put


def tensors(*specs: TensorSpec, **more: Any) -> bytes:
    """A file with these tensors."""
    return build([], specs, **more)


def _shapes() -> None:
    kind = "shapes"
    _add(
        kind,
        "a million dimensions",
        lambda: tensors(TensorSpec("t", (1,), n_dims=10**6)),
        "tensor t: dimensions is 1000000, allowed are 0 to 4",
    )
    _add(
        kind,
        "five dimensions",
        lambda: tensors(TensorSpec("t", (1, 1, 1, 1, 1))),
        "tensor t: dimensions is 5, allowed are 0 to 4",
        llama_cpp=("TENSORS_BAD_N_DIMS",),
    )
    elements = r"tensor t: elements of a tensor is \d+, allowed are 0 to 9223372036854775807"
    for name, dims, names in (
        ("dimensions that wrap to 0", (1 << 32, 1 << 32), ()),
        ("dimensions that wrap to 4", ((1 << 62) + 1, 4), ()),
        ("dimensions of 2^42+1", ((1 << 42) + 1,) * 3, ()),
        ("dimension -1", ((1 << 64) - 1,), ("TENSORS_BAD_SHAPE",)),
        ("dimension -1 beside 0", ((1 << 64) - 1, 0), ()),
        ("4 * INT32_MAX, squared", (4 * (2**31 - 1),) * 2, ("TENSORS_NE_TOO_BIG",)),
    ):
        _add(kind, name, lambda dims=dims: tensors(TensorSpec("t", dims, data=b"")), elements, llama_cpp=names)
    short = r"truncated: tensor t needs \d+ bytes"
    _add(
        kind,
        "bytes that wrap",
        lambda: tensors(TensorSpec("t", (1_530_000_000, 1_530_000_000), 27, data=b"")),
        short,
        llama_cpp=("TENSORS_NBYTES_TOO_BIG",),
    )
    _add(kind, "2^62 elements of 4 bytes", lambda: tensors(TensorSpec("t", (1 << 62,), data=b"")), short)
    _add(kind, "more elements than bytes", lambda: tensors(TensorSpec("t", (1 << 40,), data=b"abcd")), short)
    _add(
        kind,
        "sizes whose sum wraps",
        lambda: tensors(
            *(TensorSpec(f"t{i}", ((1 << 63) - 64,), 24, bytes(32), i * ((1 << 63) - 64)) for i in range(2))
        ),
        "truncated: tensor t0 needs",
        llama_cpp=("DATA_MEM_SIZE_OVERFLOW",),
    )
    _add(kind, "zero rows", lambda: tensors(TensorSpec("t", (4, 0))), None, llama_cpp=("TENSORS_ZERO_DIM",))
    _add(kind, "zero columns", lambda: tensors(TensorSpec("t", (0, 4))), None)
    _add(kind, "zero elements in blocks", lambda: tensors(TensorSpec("t", (0,), gb.Q8_0)), None)
    _add(kind, "no dimension", lambda: tensors(TensorSpec("t", ())), None)
    for name, dims, block in (("K-quant on 896 columns", (896, 2), gb.Q4_K), ("Q8_0 scalar", (), gb.Q8_0)):
        _add(
            kind,
            name,
            lambda dims=dims, block=block: tensors(TensorSpec("t", dims, block)),
            r"tensor t: row length \d+ is not a multiple of Q\w+'s block size \d+",
        )


def _tensors() -> None:
    kind = "tensor table"
    good = [
        TensorSpec("a", (3, 2)),
        TensorSpec("b", (64, 2), gb.Q8_0),
        TensorSpec("c", (5,), gb.F16),
        TensorSpec("d", (256,), gb.Q4_K),
    ]
    _add(kind, "good tensors", lambda: tensors(*good), None, llama_cpp=("TENSORS_SUCCESS", "DATA_SUCCESS"))
    _add(
        kind,
        "a tensor twice",
        lambda: tensors(TensorSpec("t"), TensorSpec("t")),
        "tensor t appears twice",
        llama_cpp=("TENSORS_DUPLICATE_NAME",),
    )
    for number in (4, 36, 43, 153):
        _add(kind, f"type {number}", lambda n=number: tensors(TensorSpec("t", (1,), n, data=bytes(32))), None)
    _add(kind, "type 42, llama.cpp's", lambda: tensors(TensorSpec("t", (128, 9), 42, data=bytes(324))), None)
    _add(kind, "type 42, a fork's", lambda: tensors(TensorSpec("t", (128, 9), 42, data=bytes(306))), None)
    for number in (1024, 1 << 31, (1 << 32) - 1):
        _add(
            kind,
            f"type {number}",
            lambda n=number: tensors(TensorSpec("t", (1,), n, data=bytes(32))),
            rf"tensor t: ggml type is {number}, allowed are 0 to 1023",
            llama_cpp=("TENSORS_BAD_TYPE",),
        )
    _add(
        kind,
        "overlap",
        lambda: tensors(TensorSpec("a", (64,)), TensorSpec("b", (64,), offset=32)),
        r"tensor b starts at data offset 32, before the end \(256\) of a",
    )
    _add(
        kind,
        "same offset",
        lambda: tensors(TensorSpec("a"), TensorSpec("b", offset=0)),
        r"before the end \(4\) of a",
    )
    _add(
        kind,
        "out of order",
        lambda: tensors(TensorSpec("a", offset=32), TensorSpec("b", offset=0)),
        "must be in order",
    )
    _add(
        kind,
        "misaligned",
        lambda: tensors(TensorSpec("a"), TensorSpec("b", offset=36)),
        "tensor b starts at data offset 36, not a multiple of 32",
    )
    _add(
        kind,
        "a gap between tensors",
        lambda: tensors(TensorSpec("a"), TensorSpec("b", offset=64)) + bytes(32),
        None,
    )
    for name, offset in (("2^60", 1 << 60), ("2^64-32", (1 << 64) - 32)):
        _add(
            kind,
            f"offset {name}",
            lambda offset=offset: tensors(TensorSpec("a", offset=offset)),
            r"truncated: tensor a needs 4 bytes .* 0 are present",
        )
    _add(
        kind,
        "offset 2^64-1",
        lambda: tensors(TensorSpec("a", offset=(1 << 64) - 1)),
        "tensor a starts at data offset 18446744073709551615, not a multiple of 32",
        llama_cpp=("TENSORS_BAD_OFFSET",),
    )
    _add(
        kind,
        "unknown type beyond the end",
        lambda: tensors(TensorSpec("a", (1,), 43, offset=1 << 60), TensorSpec("b", (1,), offset=1 << 61)),
        "truncated: tensor a",
    )
    _add(
        kind,
        "the last byte is missing",
        lambda: tensors(*good)[: -gb.pad(144, 32) - 1],
        r"truncated: tensor d needs 144 bytes .* 143 are present",
        llama_cpp=("DATA_NOT_ENOUGH_DATA",),
    )
    _add(kind, "no data at all", lambda: tensors(TensorSpec("a", (8,), data=b"")), "truncated: tensor a needs 32 bytes")


def _names() -> None:
    kind = "tensor names"
    _add(
        kind,
        "empty name",
        lambda: tensors(TensorSpec("")),
        "tensor table: tensor name length is 0, allowed are 1 to 255",
        why="a tensor without a name can be nobody's",
    )
    long = r"tensor name length is 300, allowed are 1 to 255"
    _add(kind, "name of 300 bytes", lambda: tensors(TensorSpec("n" * 300)), long, llama_cpp=("TENSORS_BAD_NAME_SIZE",))
    _add(kind, "name of 200 bytes", lambda: tensors(TensorSpec("n" * 200)), None)
    _add(
        kind,
        "name that is no UTF-8",
        lambda: tensors(TensorSpec(b"a\xff")),
        r"tensor table: b'a\\xff' is not valid UTF-8 \(byte 1\)",
        why="names are text by the specification",
    )
    _add(
        kind,
        "NUL in a name",
        lambda: tensors(TensorSpec("output.weight\0x")),
        r"tensor table: b'output.weight\\x00x' has a NUL character \(byte 13\)",
        why="C programs see the name end at the NUL: two readers, two tensors",
    )
    _add(kind, "name that is a path", lambda: tensors(TensorSpec("../../etc/passwd")), None)
    _add(kind, "name with control characters", lambda: tensors(TensorSpec("\x1b[2Jblk.0")), None)


for section in (_shapes, _tensors, _names):
    section()
