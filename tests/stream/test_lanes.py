"""Lanes: bytes that are decoded on another device give the host's values, and outlive no buffer.

The device is memory of its own that only `put` reaches; what CUDA itself adds (streams, pinned memory) is checked by
scripts/gpu-check on a machine that has it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support import gguf_bytes, gguf_edit
from support.converter import Checkpoints
from support.gguf_edit import Stored

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.checkpoint.ggml_types import TYPES
from ggufmap.mapping import resolve
from ggufmap.mapping.transforms import Transform
from ggufmap.stream import Lazy, Workers, stream
from ggufmap.stream.dequantise import decodes_on_device
from ggufmap.stream.lanes import Lanes, Put, host_memory
from ggufmap.stream.lazy import lazy_tensor
from ggufmap.stream.packed import as_bytes
from ggufmap.stream.sources import Meter, StackSource, TensorSource
from ggufmap.stream.workers import LEAST_LIMIT, VALUE_BYTES, Budget

ROWS, COLUMNS = 96, 512


class Apart(Lanes):
    """A device whose memory is gone when its lane is left, and which counts what was put there."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = self.pieces = 0

    @contextmanager
    def enter(self, device: torch.device, mark: Any) -> Iterator[Put | None]:
        there: list[torch.Tensor] = []

        def put(raw: np.ndarray[Any, Any]) -> torch.Tensor:
            there.append(torch.from_numpy(raw.copy()))
            raw[:] = 0xA5  # the host's memory is for the next piece now
            self.nbytes += raw.nbytes
            self.pieces += 1
            return there[-1]

        yield put
        for tensor in there:
            tensor.fill_(0x5A)


def written(path: Path, names: list[str], order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE) -> Path:
    """A file with one tensor per ggml type, named after it."""
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    for name in names:
        kind = gguf.GGMLQuantizationType[name]
        if kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, np.random.default_rng(1).standard_normal((ROWS, COLUMNS), dtype=np.float32))
            continue
        block, size = gguf.GGML_QUANT_SIZES[kind]
        raw = np.random.default_rng(int(kind)).integers(0, 256, (ROWS, COLUMNS // block * size), dtype=np.uint8)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


QUANTISED = sorted(t.name for t in TYPES.values() if t.block > 1 and decodes_on_device(t))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*QUANTISED, "F16", "BF16", "F32"])
def test_values_are_those_of_the_host(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    with open_checkpoint(written(tmp_path / "f.gguf", [name])) as checkpoint:
        source = TensorSource(checkpoint, checkpoint.tensors[name], torch.bfloat16, Meter())
        host, lanes = torch.empty(ROWS, COLUMNS, dtype=dtype), Apart()
        there, part = torch.zeros_like(host), torch.zeros(ROWS, COLUMNS // 2, dtype=dtype)
        host.copy_(lazy_tensor(source, (ROWS, COLUMNS)))
        with Workers(threads=2, lanes=lanes) as workers:
            lazy = lazy_tensor(source, (ROWS, COLUMNS), workers)
            there.copy_(lazy)
            assert lanes.nbytes == checkpoint.tensors[name].nbytes  # stored bytes cross, not values
            part.copy_(lazy.narrow(1, COLUMNS // 2, COLUMNS // 2))
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    for found, wanted in ((there, host), (part, host[:, COLUMNS // 2 :])):
        same = (found.view(bits) == wanted.contiguous().view(bits)) | (found.isnan() & wanted.isnan())
        assert same.all()


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2"])
def test_a_whole_stream_is_the_same(checkpoints: Checkpoints, name: str) -> None:
    with open_checkpoint(checkpoints.gguf(name)) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, name))
        host = {key: tensor.clone() for key, tensor in stream(plan, checkpoint, torch.bfloat16)}
        lanes = Apart()
        with Workers(threads=2, background=True, lanes=lanes) as workers:
            for key, tensor in stream(plan, checkpoint, torch.bfloat16, lazy=Lazy(), workers=workers):
                out = torch.empty(tensor.shape, dtype=host[key].dtype)
                out.copy_(tensor)
                workers.drain()
                assert torch.equal(out, host[key]), key
        assert lanes.nbytes


def test_a_stack_is_put_together_there(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "f.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    for index in range(2):
        values = np.random.default_rng(index).standard_normal((4, 32, 64), dtype=np.float32)
        writer.add_tensor(f"t{index}", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_checkpoint(tmp_path / "f.gguf") as checkpoint:
        shape = (4, 64, 64)
        tensors = [checkpoint.tensors[f"t{index}"] for index in range(2)]
        source = StackSource(checkpoint, tensors, Transform("join_rows"), shape, torch.bfloat16, Meter())
        host, there = torch.empty(shape), torch.zeros(shape)
        host.copy_(lazy_tensor(source, shape))
        with Workers(threads=2, lanes=Apart()) as workers:
            there.copy_(lazy_tensor(source, shape, workers))
        assert torch.equal(host, there)


def test_packed_rows_cross_a_whole_buffer_at_a_time(tmp_path: Path) -> None:
    """Each piece costs Python's time, which a fast bus does not wait for; bytes need no memory to be decoded in."""
    rows, row = 3000, 1440
    packed = np.random.default_rng(0).integers(0, 256, (rows, row), dtype=np.uint8)
    tensor = Stored(gguf.GGMLQuantizationType.Q4_K, (rows, 2560), packed.tobytes())
    file = gguf_edit.Edited({"general.architecture": (gguf_bytes.STRING, "llama")}, {"t": tensor})
    with open_checkpoint(file.write(tmp_path / "f.gguf")) as checkpoint:
        source = TensorSource(checkpoint, as_bytes(checkpoint.tensors["t"]), torch.bfloat16, Meter())
        there, lanes, budget = torch.zeros(rows, row, dtype=torch.uint8), Apart(), Budget(LEAST_LIMIT)
        with Workers(budget, 2, background=True, lanes=lanes) as workers:
            there.copy_(lazy_tensor(source, (rows, row), workers))
            workers.drain()
            assert lanes.pieces == -(-packed.nbytes // (workers.piece * VALUE_BYTES // row * row)) == 4
        assert budget.peak <= LEAST_LIMIT // 4  # the threads' buffers, and no more
        # A rank's columns: 144 bytes of each row, which is read whole, ten times as much.
        part, budget = torch.zeros(rows, 144, dtype=torch.uint8), Budget(LEAST_LIMIT)
        with Workers(budget, 2, background=True, lanes=lanes) as workers:
            part.copy_(lazy_tensor(source, (rows, row), workers).narrow(1, 432, 144))
            workers.drain()
        assert budget.peak <= LEAST_LIMIT // 2
    assert np.array_equal(there.numpy(), packed)
    assert np.array_equal(part.numpy(), packed[:, 432:576])


def test_big_endian_numbers_are_swapped_on_the_way(tmp_path: Path) -> None:
    with open_checkpoint(written(tmp_path / "f.gguf", ["F32"], gguf.GGUFEndian.BIG)) as checkpoint:
        source = TensorSource(checkpoint, checkpoint.tensors["F32"], torch.bfloat16, Meter())
        there = torch.zeros(ROWS, COLUMNS)
        with Workers(threads=2, lanes=Apart()) as workers:
            there.copy_(lazy_tensor(source, (ROWS, COLUMNS), workers))
    assert np.array_equal(there.numpy(), np.random.default_rng(1).standard_normal((ROWS, COLUMNS), dtype=np.float32))


class Driver:
    """What of CUDA's runtime torch's own context managers stand on: each thread's device, and which are in use."""

    def __init__(self, patch: pytest.MonkeyPatch, initialised: int) -> None:
        self.used = {initialised}
        self.ran_on: list[tuple[int, int]] = []
        self._local = threading.local()
        self._streams = 0
        driver = self

        class Stream:
            def __init__(self, device: torch.device | int, number: int = 0) -> None:
                self.device = torch.device("cuda", device if isinstance(device, int) else device.index)
                self.number = number

            def wait_event(self, _: Any) -> None:
                driver.ran_on.append((driver.device, driver.current(driver.device).number))

            def synchronize(self) -> None:
                pass

        def new_stream(device: torch.device) -> Stream:
            self._streams += 1
            return Stream(device, self._streams)

        self._default = Stream
        for name, function in (
            ("Stream", new_stream),
            ("current_device", lambda: self.device),
            ("_exchange_device", self.exchange),
            ("_maybe_exchange_device", lambda device: self.exchange(device) if device in self.used else self.device),
            ("current_stream", lambda device=None: self.current(self.device if device is None else device.index)),
            ("set_stream", self.set_stream),
        ):
            patch.setattr(torch.cuda, name, function)
        patch.setattr(torch.cuda, "_get_device_index", lambda device, *_, **__: getattr(device, "index", self.device))

    @property
    def device(self) -> int:
        """The calling thread's: GPU 0 until it says another."""
        return getattr(self._local, "device", 0)

    def exchange(self, device: int) -> int:
        """As cudaSetDevice since CUDA 12: what is set is used from then on."""
        before, self._local.device = self.device, device
        self.used.add(device)
        return before

    def current(self, device: int) -> Any:
        return self._local.__dict__.setdefault("streams", {}).get(device) or self._default(device)

    def set_stream(self, stream: Any) -> None:
        if stream.device.index != self.device:
            self.exchange(stream.device.index)
        self._local.__dict__.setdefault("streams", {})[stream.device.index] = stream


def test_a_rank_uses_no_gpu_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that went back to GPU 0, where all begin, would take half a gigabyte there, as each rank's would."""
    driver, lanes = Driver(monkeypatch, initialised=3), Lanes()

    def fill(_: int) -> None:
        with lanes.enter(torch.device("cuda", 3), None) as put:
            assert put is not None
            assert driver.device == 3

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(fill, range(4)))
    assert driver.used == {3}
    assert {device for device, _ in driver.ran_on} == {3}
    assert all(stream > 0 for _, stream in driver.ran_on)  # none on the default stream


def test_memory_that_cannot_be_locked_is_ordinary() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine locks memory")
    assert host_memory(4096, pinned=True).nbytes == 4096
