"""The hand-written GGUF writer against gguf-py's reader: the correct files it makes are correct."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from support import gguf_bytes as gb

SCALARS = [
    ("t.u8", gb.UINT8, 200),
    ("t.i8", gb.INT8, -100),
    ("t.u16", gb.UINT16, 60_000),
    ("t.i16", gb.INT16, -30_000),
    ("t.u32", gb.UINT32, 4_000_000_000),
    ("t.i32", gb.INT32, -2_000_000_000),
    ("t.f32", gb.FLOAT32, 0.5),
    ("t.bool", gb.BOOL, True),
    ("t.u64", gb.UINT64, 1 << 63),
    ("t.i64", gb.INT64, -(1 << 62)),
    ("t.f64", gb.FLOAT64, 1e300),
    ("t.string", gb.STRING, "grüße"),
]
ARRAYS = [
    ("t.words", gb.ARRAY, gb.Array(gb.STRING, ["a", "", "ccc"])),
    ("t.numbers", gb.ARRAY, gb.Array(gb.INT32, [1, -2, 3])),
    ("t.empty", gb.ARRAY, gb.Array(gb.FLOAT32, [])),
]


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("alignment", [32, 8, 256])
def test_reference_reader_agrees(tmp_path: Path, endian: str, alignment: int) -> None:
    floats = np.arange(6, dtype=np.dtype(np.float32).newbyteorder(endian))
    tensors = [
        gb.TensorSpec("a.weight", (3, 2), gb.F32, floats.tobytes()),
        gb.TensorSpec("b.weight", (256, 2), gb.Q4_K),
        gb.TensorSpec("c.weight", (64,), gb.Q8_0),
    ]
    path = tmp_path / "x.gguf"
    metadata = [("general.architecture", gb.STRING, "llama"), *SCALARS, *ARRAYS]
    path.write_bytes(gb.build(metadata, tensors, endian=endian, alignment=alignment))

    reader = gguf.GGUFReader(path)
    for key, _, expected in SCALARS:
        assert reader.fields[key].contents() == expected
    for key, _, expected in ARRAYS[:2]:
        assert reader.fields[key].contents() == list(expected.items)
    assert [(t.name, t.tensor_type, t.shape.tolist()) for t in reader.tensors] == [
        ("a.weight", gguf.GGMLQuantizationType.F32, [3, 2]),
        ("b.weight", gguf.GGMLQuantizationType.Q4_K, [256, 2]),
        ("c.weight", gguf.GGMLQuantizationType.Q8_0, [64]),
    ]
    assert reader.tensors[0].data.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert len(path.read_bytes()) == reader.tensors[-1].data_offset + gb.pad(68, alignment) + 68


def test_nested_arrays_follow_the_format() -> None:
    inner = gb.Array(gb.UINT8, [7, 8])
    assert gb.value(gb.ARRAY, gb.Array(gb.ARRAY, [inner, inner])) == (
        b"\x09\0\0\0" + b"\x02" + bytes(7) + 2 * (b"\0\0\0\0" + b"\x02" + bytes(7) + b"\x07\x08")
    )


def test_overrides_reach_the_bytes() -> None:
    spec = gb.TensorSpec("x", (2,), offset=0x0102030405060708, n_dims=9)
    info = gb.tensor_info(spec, 0)
    assert info[9:13] == b"\x09\0\0\0"
    assert info[-8:] == bytes.fromhex("0807060504030201")
    assert gb.build(tensor_count=5, metadata_count=6)[4:24] == b"\3\0\0\0" + b"\5" + bytes(7) + b"\6" + bytes(7)
    assert gb.build(version=1, endian=">")[4:16] == b"\0\0\0\1" + bytes(8)
    assert gb.value(gb.STRING, gb.Text(b"\xff", length=3)) == b"\3" + bytes(7) + b"\xff"
