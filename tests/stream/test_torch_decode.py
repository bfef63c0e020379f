"""Blocks decoded in torch operations are, bit for bit, what gguf-py and libgguf make of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import gguf
import libgguf
import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ggufmap.checkpoint.ggml_types import TYPES
from ggufmap.errors import UnsupportedError
from ggufmap.stream import decode_tables, dequantise, torch_decode
from ggufmap.stream.torch_decode import DECODED, decode

NAMES = sorted(DECODED)
BLOCKS = sorted(DECODED - {"F16", "BF16"})
TYPE = {type.name: type for type in TYPES.values()}
ON = ["cpu"] + ["cuda"] * torch.cuda.is_available()
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

# Bytes of a block at which a float16 scale or minimum lies. MXFP4 and NVFP4 have scales of a byte: random ones are all
# of them; IQ1_M's float16 is in four parts.
FIRST = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
HALVES: dict[str, tuple[int, ...]] = dict.fromkeys((*FIRST, "IQ1_S", "F16", "BF16"), (0,))
HALVES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,)}
# float16: zeros, subnormal numbers, the least and the greatest normal ones, infinities, NaNs; bfloat16's infinities.
EXTREMES = [0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF]
EXTREMES += [0x7F80, 0xFF80]


@cache
def random_rows(name: str, rows: int = 128, blocks: int = 6) -> np.ndarray[Any, Any]:
    """Random bytes, shape (rows, bytes of a row), in which each extreme of each scale meets each other one's."""
    kind = TYPE[name]
    raw = np.random.default_rng(kind.id).integers(0, 256, (rows * blocks, kind.bytes), dtype=np.uint8)
    at = HALVES.get(name, ())
    count = len(EXTREMES) ** len(at)
    for scale, patterns in zip(at, np.meshgrid(*[np.array(EXTREMES, "<u2")] * len(at)), strict=True):
        raw[:count, scale : scale + 2] = patterns.reshape(-1, 1).view(np.uint8)[: len(raw)]
    return raw.reshape(rows, -1)


def reference(name: str, raw: np.ndarray[Any, Any]) -> torch.Tensor:
    """gguf-py's float32 values."""
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]))


def assert_same_numbers(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits, and NaN (whose bits mean nothing) in the same places."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    found, bits = found.cpu().contiguous(), BITS[found.dtype]
    assert torch.equal(found.isnan(), expected.isnan())
    same = (found.view(bits) == expected.contiguous().view(bits)) | found.isnan()
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} values differ"


def test_all_types_of_gguf_py_are_decoded() -> None:
    assert {kind.name for kind in gguf.quants._type_traits} | {"F16"} == DECODED


@pytest.mark.parametrize("device", ON)
@pytest.mark.parametrize("name", NAMES)
def test_random_bytes_are_what_gguf_py_says(name: str, device: str) -> None:
    raw = random_rows(name)
    expected = reference(name, raw)
    assert len(expected.unique()) > 100
    if name in HALVES:
        assert bool(expected.isnan().any()) and bool(expected.isinf().any())
        assert bool(((expected != 0) & (expected.abs() < 2**-14)).any())
    assert_same_numbers(decode(torch.from_numpy(raw).to(device), name), expected)


@pytest.mark.parametrize("name", BLOCKS)
def test_random_bytes_are_what_libgguf_says(name: str) -> None:
    raw = random_rows(name)
    native = dequantise._libgguf_decoder(TYPE[name])
    assert native is not None
    expected = np.empty((len(raw), raw.shape[1] // TYPE[name].bytes * TYPE[name].block), dtype=np.float32)
    native(raw.reshape(-1), expected.reshape(-1))
    assert_same_numbers(decode(torch.from_numpy(raw), name), torch.from_numpy(expected))


@pytest.mark.parametrize("name", [name for name in BLOCKS if not name.startswith(("IQ1", "IQ2"))])  # slow to quantise
def test_quantised_weights_come_back(name: str) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 512), dtype=np.float32) / 16
    kind = TYPE[name]
    importance = np.ones(512, dtype=np.float32) if libgguf.quantize_requires_imatrix(kind.id) else None
    raw = libgguf.quantize_rows(weights, kind.id, importance)
    found = decode(torch.from_numpy(raw), name)
    assert_same_numbers(found, reference(name, raw))
    likeness = np.corrcoef(found.numpy().ravel(), weights.ravel())[0, 1]
    assert likeness > 0.6  # three values give 0.68


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_destination_is_rounded_into_once(name: str, dtype: torch.dtype) -> None:
    raw = random_rows(name)
    expected = reference(name, raw).to(dtype)
    out = torch.empty_like(expected)
    assert decode(torch.from_numpy(raw), name, out) is out
    assert_same_numbers(out, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_destination_of_any_strides(name: str) -> None:
    raw = random_rows(name)
    expected = reference(name, raw)
    rows, columns = expected.shape
    wide = torch.zeros(rows, columns + 10, dtype=torch.float32)
    decode(torch.from_numpy(raw), name, wide[:, 3:-7])
    assert_same_numbers(wide[:, 3:-7], expected)
    assert not wide[:, :3].any() and not wide[:, -7:].any()
    turned = torch.empty(columns, rows)
    decode(torch.from_numpy(raw), name, turned.t())
    assert_same_numbers(turned.t(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_any_number_place_and_strides(name: str) -> None:
    raw = random_rows(name)
    expected = reference(name, raw)
    assert decode(torch.from_numpy(raw[:0]), name).shape == (0, expected.shape[1])
    for count in (1, 2, 7):
        assert_same_numbers(decode(torch.from_numpy(raw[:count]), name), expected[:count])
    block, block_bytes = TYPE[name].block, TYPE[name].bytes
    for count in (1, 3):  # a single block is contiguous whatever its strides
        part = torch.from_numpy(raw)[:, block_bytes : 2 * block_bytes][:count]
        assert_same_numbers(decode(part, name), expected[:count, block : 2 * block])
    for offset in (1, 2, 3):
        buffer = torch.empty(raw.nbytes + offset, dtype=torch.uint8)
        place = buffer[offset:].view(raw.shape)
        place.copy_(torch.from_numpy(raw))
        assert_same_numbers(decode(place, name), expected)
        odd = torch.from_numpy(buffer.numpy()[offset:].reshape(raw.shape))  # begins its storage at an odd address
        assert_same_numbers(decode(odd, name), expected)


@pytest.mark.parametrize("name", NAMES)
def test_pieces_are_parts_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(name)
    expected = reference(name, raw)
    for values in (1, 5 * expected.shape[1] + 1):
        monkeypatch.setattr(torch_decode, "_CHUNK", values)
        assert_same_numbers(decode(torch.from_numpy(raw), name), expected)


class Watch(TorchDispatchMode):
    """Every operation but views, and the most bytes that were held by what they made."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = {x.untyped_storage()._cdata for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **kwargs)
        storages = [x.untyped_storage() for x in tree_iter(result) if isinstance(x, torch.Tensor)]
        fresh = [storage for storage in storages if storage._cdata not in before]
        if fresh or func._schema.is_mutable or not storages:
            self.ran.append(func._schema.name.removeprefix("aten::") + " to a device" * ("device" in kwargs))
        self._made |= {storage._cdata: (StorageWeakRef(storage), storage.nbytes()) for storage in fresh}
        self.peak = max(self.peak, sum(size for alive, size in self._made.values() if not alive.expired()))
        return result


# None of them waits for the device, or takes from its numbers what shape something has.
HARMLESS = {"_to_copy", "clone", "copy_", "take", "index_select", "mul", "sub", "add", "add_", "neg"}
HARMLESS |= {"__rshift__", "bitwise_and", "bitwise_or"}


@pytest.mark.parametrize("name", NAMES)
def test_work_and_memory_are_bounded_and_nothing_waits_for_the_device(name: str) -> None:
    raw = torch.from_numpy(random_rows(name))
    for dtype in (torch.float32, torch.bfloat16):
        out = decode(raw, name).to(dtype)
        tables = decode_tables._on_device.cache_info().misses, decode_tables.constant.cache_info().misses
        with Watch() as watch:
            decode(raw, name, out)
        assert 1 <= len(watch.ran) <= 12, watch.ran
        assert watch.peak <= 10 * out.numel()  # and one for a copy of the bytes
        assert set(watch.ran) <= HARMLESS
        assert tables == (decode_tables._on_device.cache_info().misses, decode_tables.constant.cache_info().misses)


def test_what_cannot_be_decoded_is_refused() -> None:
    rows = torch.zeros(2, 36, dtype=torch.uint8)
    with pytest.raises(UnsupportedError, match="no decoder in torch for ggml type Q8_1"):
        decode(rows, "Q8_1")
    with pytest.raises(ValueError, match="Q4_K rows are uint8 in blocks of 144"):
        decode(rows, "Q4_K")
    with pytest.raises(ValueError, match=r"Q4_0 rows are uint8 in blocks of 18: torch\.int8"):
        decode(rows.view(torch.int8), "Q4_0")
    with pytest.raises(ValueError, match=r"2 rows of 64 Q4_0 values do not fit into \(2, 32\)"):
        decode(rows, "Q4_0", torch.empty(2, 32))
