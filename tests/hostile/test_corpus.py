"""The corpus: each file is read, or refused as an error that says what is wrong and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hostile.case import Case
from hostile.corpus import CASES, LLAMA_CPP, write
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import ARRAY, INT32, STRING, UINT8, Array, TensorSpec, build

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, GgufmapError
from ggufmap.mapping import resolve
from ggufmap.modeldir.config import build_config
from ggufmap.modeldir.tokenizer import build_tokenizer


def ours(path: Path, stage: str) -> None:
    """What the case's stage does with the file."""
    with open_checkpoint(path) as checkpoint:
        if stage == "tokenizer":
            build_tokenizer(checkpoint.metadata)
        if stage == "config":
            architecture = find_architecture(checkpoint.architecture, str(path))
            resolve(checkpoint, architecture)
            build_config(checkpoint, architecture)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.name}")
def test_outcome(tmp_path: Path, case: Case) -> None:
    path = write(case, tmp_path)
    if case.ours is None:
        ours(path, case.stage)
        return
    with pytest.raises(GgufmapError) as e:
        ours(path, case.stage)
    assert re.search(case.ours, e.value.message), e.value.message
    assert str(tmp_path) in e.value.message
    assert len(e.value.message) < 1000


def test_names_are_distinct_and_every_kind_of_llama_cpp_is_there() -> None:
    assert len({(case.kind, case.name) for case in CASES}) == len(CASES)
    assert {name for case in CASES for name in case.llama_cpp} == LLAMA_CPP


def test_truncated_header_at_every_byte(tmp_path: Path) -> None:
    metadata = small.llama_metadata() | {
        "words": (ARRAY, Array(STRING, ["one", "two", ""])),
        "numbers": (ARRAY, Array(INT32, [1, 2, 3])),
        "flags": (ARRAY, Array(gb.BOOL, [1, 0])),
        "nested": (ARRAY, Array(ARRAY, [Array(UINT8, [1, 2]), Array(STRING, ["x"])])),
    }
    whole = small.encode(metadata, [small.tensor("a.weight", 2, 3), TensorSpec("b.weight", (32,), gb.Q8_0)])
    end = len(whole) - gb.pad(34, 32)  # the padding after the last tensor may be missing
    path = tmp_path / "cut.gguf"
    for size in range(end):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError):
            open_checkpoint(path)
    path.write_bytes(whole[:end])
    open_checkpoint(path).close()


def test_truncated_data_names_tensor_and_bytes(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1000)
    with pytest.raises(FileError) as e:
        open_checkpoint(path)
    needed = small.VOCAB * small.HIDDEN * 4
    assert f"truncated: tensor output.weight needs {needed} bytes" in e.value.message
    assert f"{needed - 1000} are present (file size {size - 1000})" in e.value.message
    assert "incomplete" in str(e.value.hint)


def test_a_file_cut_after_opening_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    with open_checkpoint(path) as checkpoint:
        with path.open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(FileError, match=r"ends at byte 4096|ends at byte \d+, \d+ bytes before the end of a read"):
            checkpoint.read(checkpoint.tensors["output.weight"])


@pytest.mark.parametrize("shape", [(64, 0), (0, 64)])
def test_a_tensor_without_values_is_read_and_never_mapped(tmp_path: Path, shape: tuple[int, int]) -> None:
    empty = small.tensor("blk.0.attn_q.weight", *shape)
    path = small.write_llama(tmp_path / "m.gguf", tensors=small.replaced(small.llama_tensors(), empty))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["blk.0.attn_q.weight"].nbytes == 0
        assert checkpoint.read(checkpoint.tensors["blk.0.attn_q.weight"]) == b""
        plan = resolve(checkpoint, find_architecture("llama", str(path)))
    assert not plan.ok
    assert [(x.tensor, x.reason) for x in plan.mismatched] == [
        ("blk.0.attn_q.weight", f"shape {shape} holds no values")
    ]
    assert all("blk.0.attn_q.weight" not in a.tensors for a in plan.assignments)


def test_the_writer_of_the_corpus_makes_what_it_is_asked_for() -> None:
    assert build() == b"GGUF" + (3).to_bytes(4, "little") + bytes(16) + bytes(8)
