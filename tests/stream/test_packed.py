"""The packed stream: the stored bytes of whole rows, through every transform that moves rows, lazy and eager alike."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support import gguf_edit
from support.converter import Checkpoints
from support.gguf_edit import Edited, Stored

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import resolve
from ggufmap.mapping.storage import rename_packed
from ggufmap.mapping.transforms import KINDS, Transform
from ggufmap.stream import Lazy, stream
from ggufmap.stream.lazy import LazyTensor
from ggufmap.stream.packed import as_bytes, packed_view
from ggufmap.stream.transforms import apply

BLOCK, BYTES = 32, 34  # Q8_0
ROWS, COLUMNS = 48, 64


def quantised(shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random Q8_0 blocks: rows of bytes, and what gguf-py decodes of them."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    return torch.from_numpy(raw.copy()), torch.from_numpy(decoded(raw))


def decoded(raw: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(gguf.quants.dequantize(np.ascontiguousarray(raw), gguf.GGMLQuantizationType.Q8_0))


# Transform -> argument, more arguments, and the shapes of the tensors that it takes.
MATRIX, STACK = (ROWS, COLUMNS), (4, ROWS, COLUMNS)
ARGUMENTS: dict[str, tuple[Transform, list[tuple[int, ...]]]] = {
    "copy": (Transform("copy"), [MATRIX]),
    "rope_rows": (Transform("rope_rows", 4), [MATRIX]),
    "experts": (Transform("experts"), [STACK]),
    "experts_below": (Transform("experts_below"), [STACK]),
    "expert_halves": (Transform("expert_halves"), [STACK]),
    "join_rows": (Transform("join_rows"), [MATRIX, MATRIX]),
    "join_rope_rows": (Transform("join_rope_rows", 4, (2,)), [MATRIX, MATRIX, MATRIX]),
    "group_rows": (Transform("group_rows", 4), [(3 * ROWS, COLUMNS), MATRIX]),
    "tiled_rows": (Transform("tiled_rows", 2, (6,)), [MATRIX]),
    "tiled_tail": (Transform("tiled_tail", 2, (6, 12)), [MATRIX]),
    "qkv_heads": (Transform("qkv_heads", 4), [MATRIX]),
    "qkv_groups_rope": (Transform("qkv_groups_rope", 4), [(ROWS * 2, COLUMNS), MATRIX, MATRIX]),
}


@pytest.mark.parametrize("name", sorted(name for name, kind in KINDS.items() if kind.moves_rows))
def test_rows_of_bytes_move_as_the_values_do(name: str) -> None:
    if name not in ARGUMENTS:
        pytest.fail(f"{name} says that it moves whole rows: how is it called?")
    transform, shapes = ARGUMENTS[name]
    pairs = [quantised(shape, seed) for seed, shape in enumerate(shapes)]
    packed = apply(transform, [raw for raw, _ in pairs])
    dense = apply(transform, [values for _, values in pairs])
    assert len(packed) == len(dense) > 0
    for rows, values in zip(packed, dense, strict=True):
        assert rows.dtype is torch.uint8 and rows.shape == (*values.shape[:-1], values.shape[-1] // BLOCK * BYTES)
        assert np.array_equal(decoded(rows.numpy()), values.numpy())


def q8_0(source: Path, out: Path) -> Path:
    """The file with its matrices in Q8_0."""
    file: Edited = gguf_edit.read(source)
    for name, tensor in file.tensors.items():
        if len(tensor.shape) > 1 and "norm" not in name:
            file.tensors[name] = gguf_edit.quantised(tensor.values, "Q8_0")
    return file.write(out)


@pytest.fixture(scope="module")
def llama(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return q8_0(checkpoints.gguf("llama"), tmp_path_factory.mktemp("packed") / "llama.gguf")


def test_the_stream_has_the_bytes_of_the_file(llama: Path) -> None:
    """Two layers packed, the rest dense: names, types and row order of each."""
    packed = {"blk.0.attn_q.weight", "blk.1.ffn_down.weight", "token_embd.weight"}
    with open_checkpoint(llama) as checkpoint:
        plan = resolve(checkpoint, find_architecture("llama", "x"))
        dense = {name: t.clone() for name, t in stream(plan, checkpoint, torch.float32)}
        made = rename_packed(plan, frozenset(packed))
        view = packed_view(checkpoint, packed)
        eager = {name: t.clone() for name, t in stream(made, view, torch.float32)}
        assert all(a.type.name != "bytes" for a in checkpoint.tensors.values())
        names = {
            "model.layers.0.self_attn.q_proj.qweight",
            "model.layers.1.mlp.down_proj.qweight",
            "model.embed_tokens.qweight",
        }
        assert {name for name in eager if name.endswith("qweight")} == names
        assert len(eager) == len(dense)
        for name, tensor in eager.items():
            want = dense[name.replace("qweight", "weight")]
            if name in names:
                assert tensor.dtype is torch.uint8
                assert np.array_equal(decoded(tensor.numpy()), want.numpy()), name
            else:
                assert torch.equal(tensor, want), name
        stored = np.frombuffer(checkpoint.read(checkpoint.tensors["blk.1.ffn_down.weight"]), dtype=np.uint8)
        assert np.array_equal(eager["model.layers.1.mlp.down_proj.qweight"].numpy().reshape(-1), stored)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_reads_its_own_blocks(llama: Path, ranks: int) -> None:
    """Row parts and column parts stay lazy, and together the ranks read what the file has, once."""
    name = "blk.0.ffn_down.weight"
    with open_checkpoint(llama) as checkpoint:
        plan = resolve(checkpoint, find_architecture("llama", "x"))
        (assignment,) = (a for a in plan.assignments if a.tensors == (name,))
        made, view = rename_packed(plan, frozenset((name,))), packed_view(checkpoint, {name})
        stored = checkpoint.tensors[name]
        whole = np.frombuffer(checkpoint.read(stored), dtype=np.uint8).reshape(stored.rows, -1)
        for axis in (0, 1):
            lazy = Lazy()
            for rank in range(ranks):
                wanted = {a for a in made.assignments if a.tensors == assignment.tensors}
                for _, tensor in stream(made, view, torch.bfloat16, wanted=wanted.__contains__, lazy=lazy):
                    part = tensor.chunk(ranks, axis)[rank]
                    assert isinstance(part, LazyTensor)
                    out = torch.empty(part.shape, dtype=torch.uint8)
                    out.copy_(part)
                    assert np.array_equal(out.numpy(), np.array_split(whole, ranks, axis)[rank])
            assert lazy.counter.materialised == 0
            assert lazy.meter.nbytes == whole.nbytes or axis == 1  # short column parts are read with their rows


def test_a_stack_is_cut_by_expert(tmp_path: Path) -> None:
    raw, _ = quantised((3, 8, 64), 0)
    file = gguf_edit.Edited({"general.architecture": (8, "qwen3moe"), "qwen3moe.block_count": (4, 1)})
    file.tensors["blk.0.ffn_up_exps.weight"] = Stored(gguf.GGMLQuantizationType.Q8_0, (3, 8, 64), raw.numpy().tobytes())
    with open_checkpoint(file.write(tmp_path / "m.gguf")) as checkpoint:
        tensor = as_bytes(checkpoint.tensors["blk.0.ffn_up_exps.weight"])
        assert tensor.shape == (3, 8, 68) and tensor.row_bytes == 68 and tensor.nbytes == 3 * 8 * 68
        for expert in range(3):
            rows = slice(expert * 8, expert * 8 + 8)
            assert checkpoint.read(tensor, rows) == raw[expert].numpy().tobytes()
