"""The compiled decoders make what gguf-py and torch make, bit for bit, wherever their bytes lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support import ggml
from support import gguf_bytes as gb
from support.gguf_bytes import TensorSpec

from ggufmap.checkpoint import open_checkpoint
from ggufmap.checkpoint.ggml_types import TYPES, GgmlType
from ggufmap.native import Native, native
from ggufmap.stream import compiled, dequantise
from ggufmap.stream.lazy import Counter, lazy_tensor
from ggufmap.stream.sources import Meter, TensorSource
from ggufmap.stream.workers import Workers

pytestmark = pytest.mark.skipif(native().library is None, reason=native().why)
TYPE = {type.name: type for type in TYPES.values()}
NAMES = sorted(kind.name for kind in gguf.quants._type_traits if kind.name != "BF16")
NEW = ["Q1_0", "Q2_0"]  # gguf-py does not decode them


def decoder(type: GgmlType) -> compiled.Decoder:
    found = dequantise._compiled(type)
    assert found is not None
    return found


def random_blocks(type: GgmlType, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, type.bytes), dtype=np.uint8)


def reference(name: str, raw: np.ndarray[Any, Any]) -> torch.Tensor:
    if name in NEW:
        return torch.from_numpy(ggml.decoded(name.lower(), raw, len(raw) * TYPE[name].block))
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(-1))


def decoded(type: GgmlType, raw: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    out = torch.full((len(raw) * type.block + 2,), 7.0, dtype=dtype)
    values = out[1:-1] if dtype is torch.float32 else out[1:-1].view(torch.uint16)
    decoder(type)(raw.reshape(-1), values.numpy())
    assert out[0] == out[-1] == 7.0, "written beside the values"
    return out[1:-1]


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    bits = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[found.dtype]
    assert found.dtype == expected.dtype and torch.equal(found.isnan(), expected.isnan())
    same = (found.contiguous().view(bits) == expected.view(bits)) | found.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} differ"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*NAMES, *NEW])
def test_random_blocks_in_any_number_at_any_place(name: str, dtype: torch.dtype) -> None:
    """Odd and even addresses; fewer blocks than the library takes at once, as many, and some over."""
    type = TYPE[name]
    for count in (1, 2, 3, 15, 16, 17, 33, 200):
        blocks = random_blocks(type, count, count)
        for shift in (0, 1):
            memory = np.zeros(blocks.nbytes + shift, np.uint8)
            memory[shift:] = blocks.reshape(-1)
            found = decoded(type, memory[shift:].reshape(count, -1), dtype)
            assert_same(found, reference(name, blocks).to(dtype))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_float16_scale(name: str) -> None:
    """Zeros, subnormals, infinities, NaNs and all between, and what rounds to bfloat16 halfway."""
    type = TYPE[name]
    raw = random_blocks(type, 1 << 16)
    raw[:, :2] = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    for dtype in (torch.float32, torch.bfloat16):
        assert_same(decoded(type, raw, dtype), reference(name, raw).to(dtype))


def test_values_that_subnormal_scales_make_are_kept_with_denormals_flushed() -> None:
    """A process that has torch flush them (as some servers do) loads the same weights."""
    raw = np.zeros((1, 34), np.uint8)
    raw[0, :2], raw[0, 2:] = (1, 0), 1  # the smallest float16, 2**-24, times one
    torch.set_flush_denormal(True)
    try:
        found = decoded(TYPE["Q8_0"], raw, torch.float32)
    finally:
        torch.set_flush_denormal(False)
    assert found.tolist() == [2.0**-24] * 32


def test_a_decoder_that_differs_in_one_bit_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    type = TYPE["Q6_K"]

    def wrong(raw: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        dequantise._decoder(type)(raw, values)
        finite = np.flatnonzero(np.isfinite(values))
        values[finite[-1]] = np.nextafter(values[finite[-1]], np.float32(np.inf))

    assert compiled.compiled(type, dequantise._decoder(type)) is not None
    assert not caplog.records
    assert compiled.compiled(type, wrong) is None
    assert "decodes Q6_K to other values than libgguf" in caplog.text and native().compiler in caplog.text


def test_torch_s_defaults_do_not_matter() -> None:
    """vLLM loads with those of the model: its dtype, and its device."""
    type = TYPE["Q8_0"]
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            assert compiled.compiled(type, dequantise._decoder(type)) is not None
    finally:
        torch.set_default_dtype(torch.float32)


def test_bytes_and_values_that_do_not_fit_are_refused() -> None:
    """C would read and write on beyond them."""
    type = TYPE["Q8_0"]
    raw, values = np.zeros(2 * type.bytes, np.uint8), np.zeros(2 * type.block, np.float32)
    decoder(type)(raw, values)
    wrong = [
        (raw[:-1], values),
        (raw, values[:-1]),
        (raw[: type.bytes], values),
        (np.zeros(136, np.uint8)[::2], values),
    ]
    for some, few in wrong:
        with pytest.raises(ValueError, match="bytes of Q8_0 are not"):
            decoder(type)(some, few)


def test_no_library_and_no_such_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled._decoder(TYPE["Q8_1"]) is None
    monkeypatch.setattr(compiled, "native", lambda: Native(None))
    assert compiled._decoder(TYPE["Q8_0"]) is None


@pytest.mark.parametrize("name", sorted(compiled._TABLES))
def test_tables_of_another_shape_are_not_looked_into(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled._decoder(TYPE[name]) is not None
    shapes = compiled._TABLES[name][1]
    monkeypatch.setitem(compiled._TABLES, name, (lambda: (np.zeros((8, 8), np.int8),), shapes))
    assert compiled._decoder(TYPE[name]) is None


@pytest.mark.parametrize("native_too", [True, False], ids=["compiled", "without"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_tensor_goes_straight_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, native_too: bool
) -> None:
    """Into a parameter of float32 or bfloat16, with no copy; with the same values as without the library."""
    if not native_too:
        monkeypatch.setattr(dequantise, "_compiled", lambda type: None)
    type, rows = TYPE["Q6_K"], 40
    raw = random_blocks(type, rows * 2)
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("t", (512, rows), type.id, raw.tobytes())]))
    with open_checkpoint(path) as checkpoint, Workers(threads=2) as workers:
        source, counter = TensorSource(checkpoint, checkpoint.tensors["t"], dtype, Meter()), Counter()
        straight = dtype is torch.float32 or (native_too and dtype is torch.bfloat16)
        assert source.fills(dtype) == straight
        parameter = torch.zeros(2, rows // 2, 512, dtype=dtype)
        parameter[1].copy_(lazy_tensor(source, (rows, 512), workers, counter)[rows // 2 :])
        assert (counter.seconds == 0) == straight
    expected = reference("Q6_K", raw).to(dtype).view(2, rows // 2, 512)
    assert bool(((parameter[1] == expected[1]) | expected[1].isnan()).all())
    assert not parameter[0].any()


@pytest.mark.parametrize(
    ("columns", "straight"),
    [(slice(256, 768), True), (slice(0, 1024), True), (slice(256, 700), False), (slice(300, 768), False)],
    ids=str,
)
@pytest.mark.parametrize("name", ["Q6_K", "BF16"])
def test_columns_on_block_edges_go_straight_too(tmp_path: Path, name: str, columns: slice, straight: bool) -> None:
    """What a tensor-parallel rank keeps of each row; elsewhere more has to be decoded than is kept."""
    type, rows = TYPE[name], 6
    kind = gguf.GGMLQuantizationType[name]
    weights = np.random.default_rng(0).standard_normal((rows, 1024), dtype=np.float32)
    raw = gguf.quants.quantize(weights, kind) if name == "BF16" else random_blocks(type, rows * 4)
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("t", (1024, rows), type.id, raw.tobytes())]))
    plain = name == "BF16"
    with open_checkpoint(path) as checkpoint, Workers(threads=2) as workers:
        source, counter = TensorSource(checkpoint, checkpoint.tensors["t"], torch.bfloat16, Meter()), Counter()
        whole = lazy_tensor(source, (rows, 1024), workers, counter)
        parameter = torch.zeros(rows, columns.stop - columns.start, dtype=torch.bfloat16)
        parameter.copy_(whole[:, columns])
        assert plain or (counter.seconds == 0) == straight
    expected = torch.from_numpy(gguf.quants.dequantize(raw.reshape(rows, -1), kind)).to(torch.bfloat16)[:, columns]
    assert bool(((parameter == expected) | expected.isnan()).all())
