"""The stream: in file order, in bounded memory, and never of a plan with problems."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.errors import FileError, MappingError, UnsupportedError
from ggufmap.mapping import Plan, resolve
from ggufmap.mapping.plan import Unmapped
from ggufmap.stream import Lazy, Workers, check_streamable, stream


def planned(checkpoint: Checkpoint) -> Plan:
    return resolve(checkpoint, find_architecture("llama", "m.gguf"))


def test_yields_every_tensor_in_file_order_and_counts_the_bytes(tmp_path: Path) -> None:
    done: list[int] = []
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        plan = planned(checkpoint)
        names = [name for name, _ in stream(plan, checkpoint, torch.bfloat16, done.append)]
        assert names == [name for assignment in plan.assignments for name in assignment.checkpoint]
        assert [a.tensors[0] for a in plan.assignments] == list(checkpoint.tensors)
        assert sum(done) == sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def test_bytes_count_when_they_are_in_memory_not_when_they_were_handed_over(tmp_path: Path) -> None:
    told: list[int] = []
    release = threading.Event()
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        plan = planned(checkpoint)
        total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        with Workers(threads=2, background=True) as workers:
            workers.each(lambda _: release.wait(60), [0, 1])  # both threads
            tensors = stream(plan, checkpoint, torch.bfloat16, told.append, lazy=Lazy(), workers=workers)
            for number, (_, tensor) in enumerate(tensors, start=1):
                torch.empty(tensor.shape).copy_(tensor)
                if number == sum(len(assignment.checkpoint) for assignment in plan.assignments):
                    assert told == []  # the loader has all of them, and nothing is read
                    release.set()
        assert sum(told) == total


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        found = dict(stream(planned(checkpoint), checkpoint, torch.bfloat16))
    embedding = found["model.embed_tokens.weight"]
    assert embedding.dtype == torch.float32  # plain types are rounded once, on the way into the parameter
    assert torch.equal(embedding, torch.from_numpy(small.values("token_embd.weight", small.VOCAB, small.HIDDEN)))
    key = small.values("blk.1.attn_k.weight", 32, 64).reshape(2, 8, 2, 64).swapaxes(1, 2).reshape(32, 64)
    assert torch.equal(found["model.layers.1.self_attn.k_proj.weight"], torch.from_numpy(key))


def test_a_plan_with_problems_is_not_streamed(tmp_path: Path) -> None:
    extra = [*small.llama_tensors(), *(small.tensor(f"stranger.{i}", 4) for i in range(30))]
    path = small.write_llama(tmp_path / "m.gguf", tensors=extra)
    with open_checkpoint(path) as checkpoint:
        with pytest.raises(MappingError) as e:
            next(stream(planned(checkpoint), checkpoint, torch.float32))
        assert f"{path}: the mapping has 30 problems" in e.value.message
        assert "unmapped stranger.19" in e.value.message
        assert "... and 10 more" in e.value.message
        assert e.value.hint == f"ggufmap audit {path} explains them."
        assert e.value.exit_code == 1


def test_types_without_a_decoder_are_refused_before_the_first_byte(tmp_path: Path) -> None:
    norm = TensorSpec("output.weight", (256, small.VOCAB), 15, bytes(292 * small.VOCAB))  # Q8_K
    tensors = small.replaced(small.llama_tensors(), norm)
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", tensors=tensors)) as checkpoint:
        with pytest.raises(UnsupportedError, match="no decoder for ggml type Q8_K"):
            check_streamable(planned(checkpoint), checkpoint)
        with pytest.raises(UnsupportedError, match="no decoder for ggml type Q8_K"):
            next(stream(planned(checkpoint), checkpoint, torch.float32))


def test_a_file_cut_while_it_is_streamed_is_an_error(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    with open_checkpoint(path) as checkpoint:
        pairs = stream(planned(checkpoint), checkpoint, torch.float32)
        next(pairs)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 1000)
        with pytest.raises(FileError, match="truncated or replaced"):
            list(pairs)


def test_what_was_taken_is_not_kept(tmp_path: Path) -> None:
    """The peak is one assignment, not the model: a tensor that the reader lets go is gone."""
    seen: list[weakref.ref[torch.Tensor]] = []
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        for _, tensor in stream(planned(checkpoint), checkpoint, torch.float32):
            seen.append(weakref.ref(tensor))
            del tensor
            assert sum(ref() is not None for ref in seen) <= 1
    assert len(seen) == 21
    assert all(ref() is None for ref in seen)


def test_check_streamable_accepts_a_good_plan_and_not_a_spoilt_one(tmp_path: Path) -> None:
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        plan = planned(checkpoint)
        check_streamable(plan, checkpoint)
        with pytest.raises(MappingError, match="1 problems"):
            check_streamable(replace(plan, unmapped=(Unmapped("x", "y"),)), checkpoint)
