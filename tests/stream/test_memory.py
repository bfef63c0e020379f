"""The memory budget: accounted without a gap, kept by the process, and an error where it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from support import gguf_bytes as gb
from support.converter import TinyFactory
from support.gguf_bytes import TensorSpec

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import UsageError
from ggufmap.mapping import resolve
from ggufmap.stream import Budget, Lazy, Workers, stream
from ggufmap.stream.workers import LEAST_LIMIT

MIB = 1 << 20
Q4_K = gguf.GGMLQuantizationType.Q4_K
WORKER = Path(__file__).with_name("memory_worker.py")


def experts_file(path: Path, experts: int, rows: int, columns: int) -> Path:
    """A block of a Qwen3 MoE: three Q4_K stacks, mostly holes (the blocks of zeros are zeros)."""
    keys = [("general.architecture", gb.STRING, "qwen3moe"), ("qwen3moe.block_count", gb.UINT32, 1)]
    shapes = {"gate": (columns, rows, experts), "up": (columns, rows, experts), "down": (rows, columns, experts)}
    stacks = [TensorSpec(f"blk.0.ffn_{part}_exps.weight", shape, int(Q4_K), b"") for part, shape in shapes.items()]
    nbytes = experts * rows * columns // 256 * 144
    offsets = [replace(spec, offset=index * nbytes) for index, spec in enumerate(stacks)]
    path.write_bytes(gb.build(keys, offsets))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + len(stacks) * nbytes)
    return path


@pytest.mark.parametrize(
    ("budget", "shape"),
    [
        pytest.param(32 * MIB, (52, 1024, 3072), id="a file of eight times the budget"),
        pytest.param(64 * MIB, (64, 1024, 2048), id="a stack larger than the budget"),
    ],
)
def test_a_process_stays_within_its_budget(tmp_path: Path, budget: int, shape: tuple[int, int, int]) -> None:
    """Case G1: peak memory above the destination, as the kernel counts it, at most the budget and a tenth."""
    path = experts_file(tmp_path / "m.gguf", *shape)
    stack = shape[0] * shape[1] * shape[2] // 256 * 144
    assert 3 * stack >= 8 * budget or stack > budget
    done = subprocess.run([sys.executable, WORKER, path, str(budget)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["values"] == 3 * shape[0] * shape[1] * shape[2]
    assert found["accounted"] <= budget
    assert found["grown"] <= 1.1 * budget


def test_a_stack_of_more_values_than_an_int32_counts_is_read_expert_by_expert(tmp_path: Path) -> None:
    """Case K6: no kernel is given more values than a piece. 2.2e9 values, all holes."""
    path = experts_file(tmp_path / "m.gguf", 132, 4096, 4096)
    stack = "blk.0.ffn_gate_exps.weight"
    budget, names = Budget(64 * MIB), []
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors[stack].elements > 2**31
        plan = replace(resolve(checkpoint, find_architecture("qwen3moe", "m")), missing=())
        wanted = {assignment for assignment in plan.assignments if assignment.tensors == (stack,)}
        out = torch.empty((4096, 4096), dtype=torch.bfloat16)
        with Workers(budget) as workers:
            for name, tensor in stream(plan, checkpoint, torch.bfloat16, None, wanted.__contains__, Lazy(), workers):
                names.append(name)
                if len(names) in (1, 132):
                    out.fill_(float("nan"))
                    out.copy_(tensor)
                    assert not out.any()
    assert len(names) == 132 and names[-1] == "model.layers.0.mlp.experts.131.gate_proj.weight"
    assert budget.peak <= budget.limit


def test_a_load_is_accounted_and_given_back(tiny: TinyFactory) -> None:
    budget = Budget(LEAST_LIMIT)
    with open_checkpoint(tiny("llama")[1]) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, "m"))
        with Workers(budget) as workers:
            for _, tensor in stream(plan, checkpoint, torch.bfloat16, workers=workers):
                assert 0 < budget.used <= budget.limit
                assert tensor.numel()
    assert budget.used == 0 and 0 < budget.peak <= budget.limit


def test_what_can_never_fit_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    """A dense tensor of 25 MB, asked for as a whole, within 16 MiB."""
    path = experts_file(tmp_path / "m.gguf", 2, 2048, 6144)
    with open_checkpoint(path) as checkpoint:
        plan = replace(resolve(checkpoint, find_architecture("qwen3moe", "m")), missing=())
        message = r"tensor blk\.0\.ffn_gate_exps\.weight: \d+ MB .* 17 MB are allowed"
        with Workers(Budget(16 * MIB)) as workers, pytest.raises(UsageError, match=message) as e:
            next(stream(plan, checkpoint, torch.bfloat16, workers=workers))
    assert e.value.hint == "Raise --max-host-memory."


def test_a_limit_too_small_to_work_with_is_refused() -> None:
    with pytest.raises(UsageError, match="too few to load with") as e:
        Budget(LEAST_LIMIT - 1)
    assert e.value.hint == "--max-host-memory 16Mi is the least."


def test_threads_wait_for_memory() -> None:
    budget = Budget(LEAST_LIMIT)
    half, running, most = LEAST_LIMIT // 2 + 1, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with budget.hold(half, "t"):
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.01)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and budget.used == 0 and budget.peak == half


@pytest.mark.parametrize("limit", [LEAST_LIMIT, 64 * MIB, 1 << 30])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_buffers_take_a_quarter_and_are_reused(limit: int, threads: int) -> None:
    budget = Budget(limit)
    with Workers(budget, threads) as workers:
        assert budget.used <= limit // 4
        addresses = set()
        for _ in range(3):
            with workers.scratch(1000, "t") as buffer:
                assert buffer.nbytes >= 1000 and buffer.ctypes.data % 64 == 0
                addresses.add(buffer.ctypes.data)
        assert len(addresses) == 1
        assert workers.piece_of(10**9) == workers.piece and workers.piece_of(1) <= workers.piece
        for value_bytes in (1, 2, 4, 8):  # as many values as fill the buffer, and no more
            values = workers.piece_of(10**9, value_bytes)
            assert workers.fits(values * value_bytes) and not workers.fits((values + 1) * value_bytes)
            with workers.scratch(values * value_bytes, "t") as buffer:
                assert buffer.ctypes.data in addresses and values * value_bytes == buffer.nbytes
    assert budget.used == 0
