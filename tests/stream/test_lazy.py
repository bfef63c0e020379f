"""Lazy tensors: any chain of views gives the dense view's values, and only the wanted bytes are read."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.converter import Checkpoints

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import Checkpoint, Tensor, open_checkpoint
from ggufmap.errors import FileError
from ggufmap.mapping import resolve
from ggufmap.mapping.transforms import Transform
from ggufmap.stream import Lazy, Settling, Workers, stream
from ggufmap.stream.lanes import Put
from ggufmap.stream.lazy import Counter, LazyTensor, lazy_tensor, lazy_tensors
from ggufmap.stream.sources import Meter, StackSource, TensorSource
from ggufmap.stream.transforms import apply
from ggufmap.target.ledger import Ledger


def settling(workers: Workers) -> Ledger:
    """What a load is watched by."""
    return Ledger({}, before=Settling(workers).before)


class Matrix:
    """A source in memory that checks what is asked of it."""

    def __init__(self, values: torch.Tensor, group: int = 1, block: int = 1) -> None:
        self.values, self.group, self.block = values, group, block
        self.name = "t"
        self.shape = (values.shape[0], values.shape[1])
        self.dtype = values.dtype
        self.value_bytes = values.itemsize
        self.read_values = 0

    def fills(self, dtype: torch.dtype) -> bool:
        return dtype is self.dtype

    def need(self, rows: slice, columns: slice) -> int:
        return 0

    def read(
        self, rows: slice, columns: slice, _: object, out: torch.Tensor | None = None, put: Put | None = None
    ) -> torch.Tensor:
        assert put is None and rows.start % self.group == 0 and columns.start % self.block == 0
        assert rows.stop % self.group == 0 or rows.stop == self.shape[0]
        found = self.values[rows, columns].contiguous()
        self.read_values += found.numel()
        return found if out is None else out.copy_(found)


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


def test_what_is_small_is_not_read_behind_what_the_threads_do() -> None:
    source, release = Matrix(torch.randn(4, 8)), threading.Event()
    with Workers(threads=2, background=True) as workers:
        workers.each(lambda _: release.wait(60), [0, 1, 2])  # more than there are threads
        found = lazy_tensor(source, (4, 8), workers).materialise()
        assert workers.pending and torch.equal(found, source.values)
        release.set()


def test_what_is_kept_does_not_take_the_memory_of_what_is_pending() -> None:
    """A vector is read while pieces wait that need all there is: they come first."""

    class Large(Matrix):
        def need(self, rows: slice, columns: slice) -> int:
            return free

    release = threading.Event()
    source, parameter = Large(torch.randn(4, 8), group=4), torch.empty(4, 8)
    with Workers(threads=2, background=True) as workers:
        free = workers.budget.limit - workers.budget.used
        workers.each(lambda _: release.wait(60), [0, 1])
        parameter.copy_(lazy_tensor(source, (4, 8), workers))
        threading.Timer(0.1, release.set).start()
        workers.keep(1000, "a vector")
        assert torch.equal(parameter, source.values)


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
    """Rows of the gates, columns of the downs, expert by expert, as a tensor-parallel rank takes them."""
    with open_checkpoint(_moe(tmp_path / "moe.gguf")) as checkpoint:
        meter = Meter()
        for tensor in checkpoint.tensors.values():
            for expert in range(tensor.shape[0]):
                whole = torch.empty(tensor.shape[1:])
                whole.copy_(_expert(checkpoint, tensor, expert, Meter()))
                axis = 1 if "down" in tensor.name else 0
                for rank in range(ranks):
                    part = _expert(checkpoint, tensor, expert, meter).chunk(ranks, axis)[rank]
                    out = torch.empty(part.shape)
                    out.copy_(part)
                    assert torch.equal(out, whole.chunk(ranks, axis)[rank])
        assert meter.nbytes == sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def _expert(checkpoint: Checkpoint, tensor: Tensor, expert: int, meter: Meter) -> LazyTensor:
    source = TensorSource(checkpoint, tensor, torch.bfloat16, meter)
    return lazy_tensors(source, [tensor.shape[1:]] * tensor.shape[0], Workers(threads=1), Counter())[expert]


@pytest.mark.parametrize("name", ["stacked_columns", "alternating_columns", "join_rows"])
def test_stacks_are_put_together_expert_by_expert(tmp_path: Path, name: str) -> None:
    """Any part of it is the same part of the whole, and only the experts in it are read."""
    experts, rows, columns = 6, 8, 32
    stacks = [np.random.default_rng(seed).standard_normal((experts, rows, columns), np.float32) for seed in (0, 1)]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for index, stack in enumerate(stacks):
        writer.add_tensor(f"t{index}", stack)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    transform = Transform(name)
    (whole,) = apply(transform, [torch.from_numpy(stack) for stack in stacks])
    with open_checkpoint(tmp_path / "m.gguf") as checkpoint:
        meter = Meter()
        source = StackSource(
            checkpoint, list(checkpoint.tensors.values()), transform, tuple(whole.shape), torch.float32, meter
        )
        lazy = lazy_tensor(source, whole.shape)
        out = torch.empty_like(whole)
        out.copy_(lazy)
        assert torch.equal(out, whole)
        meter.nbytes = 0
        part = torch.empty_like(whole[2:4, :, :4])
        part.copy_(lazy[2:4, :, :4])
        assert torch.equal(part, whole[2:4, :, :4])
        assert meter.nbytes == 2 * 2 * rows * columns * 4
        turned = torch.empty_like(whole.transpose(1, 2))
        turned.copy_(lazy.transpose(1, 2).contiguous())
        assert torch.equal(turned, whole.transpose(1, 2)) and lazy.counter.materialised == 0


def test_a_lazy_tensor_cannot_be_written_to() -> None:
    """The write would go to a copy and be lost."""
    with pytest.raises(NotImplementedError, match="cannot be written to"):
        lazy_tensor(Matrix(torch.randn(4, 8)), (4, 8)).mul_(2)


def test_a_view_that_only_a_dense_tensor_has_is_materialised() -> None:
    source = Matrix(torch.randn(4, 8))
    turned = lazy_tensor(source, (4, 8)).t().contiguous().view(-1)
    assert torch.equal(turned + 0, source.values.t().reshape(-1))


class Slow(Matrix):
    """Reads take a while."""

    def read(self, *arguments: Any, **more: Any) -> torch.Tensor:
        time.sleep(0.05)
        return super().read(*arguments, **more)


OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "computed over": lambda parameter: parameter.mul_(2),
    "read through a view": lambda parameter: parameter.t()[3:].sum(),
    "read in one element": lambda parameter: torch.tensor(parameter[7, 7].item()),
    "copied from": lambda parameter: torch.empty(8, 8).copy_(parameter),
    "in a list": lambda parameter: torch.cat([torch.zeros(1, 8), parameter]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_copy_in_the_background_is_done_before_anything_sees_its_destination(name: str) -> None:
    source = Slow(torch.randn(8, 8))
    parameter, other = torch.full((8, 8), float("nan")), torch.ones(4)
    with Workers(threads=2, background=True) as workers, settling(workers):
        parameter.copy_(lazy_tensor(source, (8, 8), workers))
        assert workers.pending
        other.mul_(2)
        parameter.view(-1)
        assert workers.pending  # neither has to do with it
        found = OPERATIONS[name](parameter)
        assert not workers.pending
    assert torch.equal(found, OPERATIONS[name](source.values.clone()))


def test_an_operation_on_nothing_waits_for_nothing() -> None:
    """vLLM fills what is padded of an embedding with zeros, also where nothing is."""
    source = Slow(torch.randn(8, 8))
    parameter = torch.full((8, 8), float("nan"))
    with Workers(threads=2, background=True) as workers, settling(workers):
        parameter.copy_(lazy_tensor(source, (8, 8), workers))
        parameter[8:].fill_(0)
        assert workers.pending
    assert torch.equal(parameter, source.values)


def test_copies_in_the_background_are_all_done_at_the_end() -> None:
    sources = [Slow(torch.randn(8, 8)) for _ in range(20)]
    parameters = [torch.full((8, 8), float("nan")) for _ in sources]
    with Workers(threads=4, background=True) as workers, settling(workers):
        for source, parameter in zip(sources, parameters, strict=True):
            parameter.copy_(lazy_tensor(source, (8, 8), workers))
    assert all(torch.equal(p, s.values) for p, s in zip(parameters, sources, strict=True))


def test_an_error_in_the_background_is_raised() -> None:
    class Failing(Matrix):
        def read(self, *_: Any, **__: Any) -> torch.Tensor:
            raise FileError("f: bad sector")

    with pytest.raises(FileError, match="bad sector"), Workers(threads=2, background=True) as workers:
        torch.empty(8, 8).copy_(lazy_tensor(Failing(torch.randn(8, 8)), (8, 8), workers))


def test_after_an_error_nothing_runs_any_more() -> None:
    class Failing(Slow):
        def read(self, rows: slice, *rest: Any, **more: Any) -> torch.Tensor:
            if not rows.start:
                raise FileError("f: bad sector")
            return super().read(rows, *rest, **more)

    source = Failing(torch.randn(64, 8))
    with Workers(threads=2) as workers:
        workers.piece_of = lambda *_: 8  # type: ignore[method-assign]
        with pytest.raises(FileError, match="bad sector"):
            torch.empty(64, 8).copy_(lazy_tensor(source, (64, 8), workers))
        assert not workers.pending
        read = source.read_values
        time.sleep(0.1)
        assert source.read_values == read < 64 * 8
