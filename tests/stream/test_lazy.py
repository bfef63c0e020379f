"""Lazy tensors: any chain of views gives the dense view's values, and only the wanted bytes are read."""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.converter import Checkpoints

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import resolve
from ggufmap.stream import Lazy, stream
from ggufmap.stream.lazy import LazyTensor, lazy_tensor


class Matrix:
    """A source in memory that checks what is asked of it."""

    def __init__(self, values: torch.Tensor, group: int = 1, block: int = 1) -> None:
        self.values, self.group, self.block = values, group, block
        self.shape = (values.shape[0], values.shape[1])
        self.dtype = values.dtype
        self.read_values = 0

    def read(self, rows: slice, columns: slice) -> torch.Tensor:
        assert rows.start % self.group == 0 and columns.start % self.block == 0
        assert rows.stop % self.group == 0 or rows.stop == self.shape[0]
        found = self.values[rows, columns].contiguous()
        self.read_values += found.numel()
        return found


def _step(chooser: random.Random, lazy: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One random view of both."""
    axis = chooser.randrange(dense.dim())
    size = dense.shape[axis]
    match chooser.randrange(6):
        case 0:
            start = chooser.randrange(size)
            length = chooser.randint(1, size - start)
            return lazy.narrow(axis, start, length), dense.narrow(axis, start, length)
        case 1 if size % 2 == 0:
            part = chooser.randint(0, 1)
            return lazy.chunk(2, axis)[part], dense.chunk(2, axis)[part]
        case 2:
            return lazy.unsqueeze(axis), dense.unsqueeze(axis)
        case 3 if dense.dim() == 2:
            return lazy.t(), dense.t()
        case 4:
            index = chooser.randrange(size)
            return lazy.unbind(axis)[index], dense.unbind(axis)[index]
        case 5 if dense.is_contiguous() and dense.numel() % 4 == 0:
            return lazy.view(4, -1), dense.view(4, -1)
    return lazy, dense


@pytest.mark.parametrize("seed", range(80))
def test_any_chain_of_views_has_the_dense_values(seed: int) -> None:
    chooser = random.Random(seed)
    rows, columns = chooser.choice([8, 16, 32]), chooser.choice([32, 64, 96])
    dense = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    source = Matrix(dense, chooser.choice([1, 4]), chooser.choice([1, 32]))
    lazy: torch.Tensor = lazy_tensor(source, (rows, columns))
    for _ in range(chooser.randint(0, 5)):
        if dense.dim():
            lazy, dense = _step(chooser, lazy, dense)
    assert isinstance(lazy, LazyTensor) and lazy.shape == dense.shape
    out = torch.empty(dense.shape)
    out.copy_(lazy)
    assert torch.equal(out, dense)


def test_nothing_is_read_before_the_copy_and_then_only_the_view() -> None:
    source = Matrix(torch.randn(64, 64))
    view = lazy_tensor(source, (64, 64)).narrow(0, 16, 8).narrow(1, 32, 16)
    assert source.read_values == 0
    torch.empty(8, 16).copy_(view)
    assert source.read_values == 8 * 16


def test_anything_else_materialises_and_counts() -> None:
    source = Matrix(torch.randn(4, 8))
    lazy = lazy_tensor(source, (4, 8))
    assert torch.equal(lazy + 1, source.values + 1)
    assert float(lazy[1, 2].item()) == float(source.values[1, 2])
    assert lazy.counter.materialised == 2


def test_a_copy_rounds_once_into_the_destination() -> None:
    source = Matrix(torch.randn(300, 8192))  # several pieces
    out = torch.empty(300, 8192, dtype=torch.bfloat16)
    out.copy_(lazy_tensor(source, (300, 8192)))
    assert torch.equal(out, source.values.to(torch.bfloat16))


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2"])
def test_lazy_and_eager_streams_are_equal(checkpoints: Checkpoints, name: str) -> None:
    with open_checkpoint(checkpoints.gguf(name)) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, name))
        eager = {key: tensor.clone() for key, tensor in stream(plan, checkpoint, torch.bfloat16)}
        kinds = set()
        for key, tensor in stream(plan, checkpoint, torch.bfloat16, lazy=Lazy()):
            kinds.add(type(tensor))
            out = torch.empty(tensor.shape, dtype=eager[key].dtype)
            out.copy_(tensor)
            assert torch.equal(out, eager[key]), key
        assert LazyTensor in kinds


def _moe(path: Path, experts: int = 4, hidden: int = 256, width: int = 1024) -> Path:
    """A one-block Mixtral-like file with Q8_0 expert stacks; expert e of the gates holds values near e."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_uint32("qwen3moe.block_count", 1)
    for part, shape in (("gate", (experts, width, hidden)), ("down", (experts, hidden, width))):
        values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        values += np.arange(experts, dtype=np.float32)[:, None, None]
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"blk.0.ffn_{part}_exps.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_read_the_file_once(tmp_path: Path, ranks: int) -> None:
    from ggufmap.checkpoint.tensor import Tensor
    from ggufmap.stream.sources import Meter, TensorSource

    with open_checkpoint(_moe(tmp_path / "moe.gguf")) as checkpoint:
        meters = [Meter() for _ in range(ranks)]
        for rank, meter in enumerate(meters):
            for tensor in checkpoint.tensors.values():
                for expert in range(tensor.shape[0]):
                    _take(checkpoint, tensor, expert, rank, ranks, meter)
        total = sum(meter.nbytes for meter in meters)
        assert total == sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        assert isinstance(tensor, Tensor) and TensorSource is not None


def _take(checkpoint: object, tensor: object, expert: int, rank: int, ranks: int, meter: object) -> None:
    """What a tensor-parallel rank does with an expert: rows of the gates, columns of the downs."""
    from ggufmap.checkpoint import Checkpoint, Tensor
    from ggufmap.stream.sources import Meter, TensorSource

    assert isinstance(checkpoint, Checkpoint) and isinstance(tensor, Tensor) and isinstance(meter, Meter)
    rows = tensor.shape[1]
    source = TensorSource(checkpoint, tensor, expert * rows, rows, torch.bfloat16, meter)
    whole = torch.empty(tensor.shape[1:], dtype=torch.float32)
    full = TensorSource(checkpoint, tensor, expert * rows, rows, torch.bfloat16, Meter())
    whole.copy_(lazy_tensor(full, tensor.shape[1:]))
    axis = 1 if "down" in tensor.name else 0
    # Parts of 256 bytes and more are read by themselves.
    part = lazy_tensor(source, tensor.shape[1:]).chunk(ranks, axis)[rank]
    out = torch.empty(part.shape, dtype=torch.float32)
    out.copy_(part)
    assert torch.equal(out, whole.chunk(ranks, axis)[rank])
