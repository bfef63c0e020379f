"""Every type that gguf-py decodes comes out as gguf-py decodes it, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from support import ggml
from support import gguf_bytes as gb
from support.gguf_bytes import TensorSpec

from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.checkpoint.ggml_types import TYPES, GgmlType, ggml_type
from ggufmap.errors import FileError, UnsupportedError
from ggufmap.stream import dequantise
from ggufmap.stream.dequantise import is_native, require_decodable
from ggufmap.stream.lazy import lazy_tensor
from ggufmap.stream.sources import Meter, TensorSource, read_values
from ggufmap.stream.workers import Workers

DECODED = sorted(kind.name for kind in gguf.quants._type_traits if kind.name != "BF16")
TYPE = {type.name: type for type in TYPES.values()}
ROWS = 7
SAME_SIZE = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def columns(type: GgmlType) -> int:
    return 2 * type.block


@cache
def blocks(name: str, count: int) -> np.ndarray[Any, Any]:
    """`count` random blocks of finite values, shape (count, bytes): random bytes, less those that decode to NaN."""
    kind = gguf.GGMLQuantizationType[name]
    size = GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(kind.value).integers(0, 256, (2 * count + 8, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        finite = np.isfinite(gguf.quants.dequantize(raw, kind)).all(axis=1)
    assert finite.sum() >= count
    return raw[finite][:count]


def reference(name: str, rows: int) -> torch.Tensor:
    raw = blocks(name, rows * 2).reshape(rows, -1)
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]))


def write(path: Path, name: str, rows: int) -> Path:
    type = TYPE[name]
    data = blocks(name, rows * 2).tobytes()
    path.write_bytes(gb.build([], [TensorSpec("first"), TensorSpec("t", (columns(type), rows), type.id, data)]))
    return path


@pytest.fixture(params=DECODED)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Checkpoint]]:
    with open_checkpoint(write(tmp_path / "t.gguf", request.param, ROWS)) as checkpoint:
        yield request.param, checkpoint


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    bits = SAME_SIZE[found.dtype]
    assert torch.equal(found.contiguous().view(bits), expected.contiguous().view(bits))


def test_types_of_both_libraries_are_covered() -> None:
    assert len(DECODED) == 23
    assert set(DECODED) <= {name for name, type in TYPE.items() if type.problem is None}


@pytest.mark.parametrize("dtype", SAME_SIZE, ids=str)
def test_values_are_the_reference_s(stored: tuple[str, Checkpoint], dtype: torch.dtype) -> None:
    """Rounded to nearest even, as torch does, where the model's dtype is narrower."""
    name, checkpoint = stored
    found = read_values(checkpoint, checkpoint.tensors["t"], dtype)
    assert_same_bits(found, reference(name, ROWS).to(dtype))


def cut_into(values: int, threads: int) -> Workers:
    """Workers that cut everything into pieces of `values` values."""
    workers = Workers(threads=threads)
    workers.piece_of = lambda *_: values  # type: ignore[method-assign]
    return workers


def test_rows_and_pieces_are_parts_of_the_whole(stored: tuple[str, Checkpoint]) -> None:
    name, checkpoint = stored
    tensor, expected = checkpoint.tensors["t"], reference(name, ROWS)
    for rows in (slice(0, 1), slice(2, 5), slice(6, 7), slice(0, 7)):
        source = TensorSource(checkpoint, tensor, torch.float32, Meter())
        assert_same_bits(lazy_tensor(source, source.shape)[rows].materialise(), expected[rows])
    for values in (1, tensor.columns * 2, tensor.columns * 3 + 1, tensor.columns * 7):
        for threads in (1, 4):
            with cut_into(values, threads) as workers:
                assert_same_bits(read_values(checkpoint, tensor, torch.float32, workers), expected)


def test_both_decoders_agree(stored: tuple[str, Checkpoint]) -> None:
    """libgguf decodes all of them, and gguf-py is the way without it."""
    name, checkpoint = stored
    tensor = checkpoint.tensors["t"]
    raw = np.frombuffer(checkpoint.read(tensor), dtype=np.uint8)
    for make in (dequantise._libgguf_decoder, dequantise._gguf_py_decoder):
        decode = make(tensor.type)
        assert decode is not None
        values = np.full((ROWS, tensor.columns), np.nan, dtype=np.float32)
        with np.errstate(all="ignore"):
            decode(raw, values.reshape(-1))
        assert_same_bits(torch.from_numpy(values), reference(name, ROWS))


def test_decoding_stays_on_its_thread() -> None:
    """libgguf would start threads of its own for many rows, at every call: with those of the load, too many."""
    type = TYPE["Q8_0"]
    decode = dequantise._libgguf_decoder(type)
    assert decode is not None
    raw = np.resize(blocks("Q8_0", 64), (1 << 15, type.bytes))
    values = np.empty((1 << 15, type.block), dtype=np.float32)
    shares = []
    for _ in range(10):  # what other threads of this process do now and then does not count
        started, own = time.process_time(), time.thread_time()
        for _ in range(5):
            decode(raw.reshape(-1), values.reshape(-1))
        shares.append((time.thread_time() - own) / (time.process_time() - started))
    assert max(shares) > 0.8


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0"])
def test_a_tensor_of_several_real_pieces_in_threads(tmp_path: Path, name: str) -> None:
    rows = 3 * Workers().piece // columns(TYPE[name]) + 5
    few = 11
    data = np.resize(blocks(name, few * 2), (rows * 2, TYPE[name].bytes))
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("t", (columns(TYPE[name]), rows), TYPE[name].id, data.tobytes())]))
    expected = reference(name, few).to(torch.bfloat16)[torch.arange(rows) % few]
    with open_checkpoint(path) as checkpoint, Workers(threads=4) as pool:
        assert_same_bits(read_values(checkpoint, checkpoint.tensors["t"], torch.bfloat16, pool), expected)


def test_shape_of_a_stack_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    data = blocks("Q8_0", 12).tobytes()
    path.write_bytes(gb.build([], [TensorSpec("t", (64, 3, 2), gb.Q8_0, data)]))
    with open_checkpoint(path) as checkpoint:
        found = read_values(checkpoint, checkpoint.tensors["t"], torch.float32)
    assert_same_bits(found, reference("Q8_0", 6).reshape(2, 3, 64))


def test_values_of_plain_types_keep_their_dtype(tmp_path: Path) -> None:
    """The only rounding is then the copy into the parameter."""
    values = torch.tensor([[1.0, 1 + 2**-20, 3e38]])
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("t", (3, 1), gb.F32, values.numpy().tobytes())]))
    with open_checkpoint(path) as checkpoint:
        assert_same_bits(read_values(checkpoint, checkpoint.tensors["t"], torch.bfloat16), values)


def test_bf16_is_bf16(tmp_path: Path) -> None:
    """gguf-py hands these out as bytes of twice the width; decoded, they are the same."""
    values = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
    data = values.view(torch.int16).numpy()
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("t", (2, 4), gb.BF16, data.tobytes())]))
    with open_checkpoint(path) as checkpoint:
        found = read_values(checkpoint, checkpoint.tensors["t"], torch.float16)
    assert_same_bits(found, values)
    reference = gguf.quants.dequantize(data.view(np.uint8), gguf.GGMLQuantizationType.BF16)
    assert_same_bits(found.float(), torch.from_numpy(reference))


def test_every_usable_type_is_plain_decoded_or_refused(tmp_path: Path) -> None:
    refused = set()
    for type in TYPES.values():
        if type.problem is not None or is_native(type):
            continue
        path = tmp_path / "t.gguf"
        path.write_bytes(gb.build([], [TensorSpec("x.weight", (type.block,), type.id, bytes(type.bytes))]))
        with open_checkpoint(path) as checkpoint:
            tensor = checkpoint.tensors["x.weight"]
            try:
                require_decodable(tensor)
            except UnsupportedError as e:
                refused.add(type.name)
                assert e.message == f"no decoder for ggml type {type.name} (id {type.id}) is installed"
            else:
                assert read_values(checkpoint, tensor, torch.float32).shape == (type.block,)
    assert refused <= {"Q8_1", "Q8_K"}  # no file holds these two: llama.cpp uses them in memory only


@pytest.mark.parametrize("name", ["Q1_0", "Q2_0"])
def test_types_that_gguf_py_does_not_decode_are_llama_cpp_s_bit_for_bit(tmp_path: Path, name: str) -> None:
    type = TYPE[name]
    assert name not in DECODED
    raw = np.random.default_rng(type.id).integers(0, 256, (ROWS * 2, type.bytes), dtype=np.uint8)
    raw[:, 1] &= 0xBB  # no scale that is infinite or no number
    expected = torch.from_numpy(ggml.decoded(name.lower(), raw, raw.shape[0] * type.block)).reshape(ROWS, -1)
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("t", (columns(type), ROWS), type.id, raw.tobytes())]))
    with open_checkpoint(path) as checkpoint:
        assert_same_bits(read_values(checkpoint, checkpoint.tensors["t"], torch.float32), expected)
        source = TensorSource(checkpoint, checkpoint.tensors["t"], torch.float32, Meter())
        assert_same_bits(lazy_tensor(source, source.shape)[2:5].materialise(), expected[2:5])


@pytest.mark.parametrize("id", [4, 43, 153])
def test_unreadable_type_is_refused_by_name(tmp_path: Path, id: int) -> None:
    path = tmp_path / "t.gguf"
    path.write_bytes(gb.build([], [TensorSpec("x.weight", (4,), id, bytes(32))]))
    with open_checkpoint(path) as checkpoint, pytest.raises(UnsupportedError, match=r"x\.weight has ggml type") as e:
        read_values(checkpoint, checkpoint.tensors["x.weight"], torch.float32)
    assert ggml_type(id).name in e.value.message


def test_a_file_cut_while_it_is_read_is_an_error_in_threads_too(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", "Q8_0", ROWS)
    with open_checkpoint(path) as checkpoint:
        with path.open("r+b") as file:
            file.truncate(checkpoint.tensors["t"].offset + 100)
        for threads in (1, 2):
            with cut_into(64, threads) as workers, pytest.raises(FileError, match="truncated or replaced"):
                read_values(checkpoint, checkpoint.tensors["t"], torch.float32, workers)
