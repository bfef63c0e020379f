"""A multimodal projector beside the model: found, told from a foreign one, never guessed among several."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import GgufmapError, UsageError

TOWER = [small.tensor("v.blk.0.attn_q.weight", 8, 8), small.tensor("mm.0.weight", small.HIDDEN, 8)]


def write_projector(path: Path, size: int = small.HIDDEN, tensors: list[gb.TensorSpec] = TOWER) -> Path:
    header: small.Metadata = {
        "general.architecture": (gb.STRING, "clip"),
        "clip.projector_type": (gb.STRING, "some_merger"),
        "clip.vision.projection_dim": (gb.UINT32, size),
    }
    return small.write(path, header, tensors)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small.write_llama(tmp_path / "m.gguf")


def test_the_only_one_beside_the_model_is_taken_when_asked_for(model: Path) -> None:
    beside = write_projector(model.with_name("mmproj-F16.gguf"))
    with open_checkpoint(model) as checkpoint:
        alone = checkpoint.header_hash()
        assert (checkpoint.projector, checkpoint.projector_path, checkpoint.projector_type) == (None, None, "")
        assert not checkpoint.projector_tensors
    with open_checkpoint(model, look_beside=True) as checkpoint:
        assert (checkpoint.projector_path, checkpoint.projector_type) == (beside, "some_merger")
        assert checkpoint.projector_tensors == {"v.blk.0.attn_q.weight", "mm.0.weight"}
        assert checkpoint.architecture == "llama" and checkpoint.own_splits == 1
        assert checkpoint.nbytes == model.stat().st_size + beside.stat().st_size
        for spec in (*small.llama_tensors(), *TOWER):
            assert checkpoint.read(checkpoint.tensors[str(spec.name)]) == gb.tensor_bytes(spec)
        assert checkpoint.header_hash() != alone


def test_the_hash_is_of_the_projector_s_header_too(model: Path) -> None:
    hashes = set()
    for name, tensors in (("a", TOWER), ("b", TOWER[:1]), ("c", TOWER)):
        with open_checkpoint(model, mmproj=write_projector(model.with_name(f"{name}.gguf"), tensors=tensors)) as found:
            hashes.add(found.header_hash())
    assert len(hashes) == 2


def test_none_of_several_is_taken(model: Path) -> None:
    files = [write_projector(model.with_name(f"mmproj-{kind}.gguf")) for kind in ("F16", "F32")]
    with open_checkpoint(model, look_beside=True) as checkpoint:
        assert checkpoint.projector is None
        assert all(file.name in checkpoint.projector_note for file in files)
        assert "--mmproj" in checkpoint.projector_note
    with open_checkpoint(model, mmproj=files[1], look_beside=True) as checkpoint:
        assert (checkpoint.projector_path, checkpoint.projector_note) == (files[1], "")


def test_one_of_another_size_is_not_this_model_s(model: Path) -> None:
    foreign = write_projector(model.with_name("mmproj.gguf"), size=128)
    with open_checkpoint(model, look_beside=True) as checkpoint:
        assert checkpoint.projector is None
        assert "128" in checkpoint.projector_note and "64" in checkpoint.projector_note
    with pytest.raises(UsageError, match=r"mmproj\.gguf: clip\.vision\.projection_dim is 128.*64: not its projector"):
        open_checkpoint(model, mmproj=foreign)


def test_a_broken_one_beside_does_not_stop_the_text(model: Path) -> None:
    beside = write_projector(model.with_name("mmproj.gguf"))
    beside.write_bytes(beside.read_bytes()[:200])
    with open_checkpoint(model, look_beside=True) as checkpoint:
        assert "mmproj.gguf" in checkpoint.projector_note and checkpoint.projector is None
    with pytest.raises(GgufmapError, match=r"mmproj\.gguf"):
        open_checkpoint(model, mmproj=beside)


def test_what_is_no_projector_is_refused(model: Path) -> None:
    other = small.write_llama(model.with_name("other.gguf"))
    with pytest.raises(UsageError, match="is a llama model, not a multimodal projector"):
        open_checkpoint(model, mmproj=other)


def test_a_tensor_in_both_files_is_refused(model: Path) -> None:
    both = write_projector(model.with_name("p.gguf"), tensors=[*TOWER, small.tensor("output_norm.weight", 64)])
    with pytest.raises(UsageError, match=r"p\.gguf: 1 tensors are also .* output_norm\.weight"):
        open_checkpoint(model, mmproj=both)


@pytest.mark.parametrize("size", [small.HIDDEN, 128])
def test_nothing_stays_open(model: Path, size: int) -> None:
    write_projector(model.with_name("mmproj.gguf"), size=size)
    before = len(list(Path("/proc/self/fd").iterdir()))
    open_checkpoint(model, look_beside=True).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
