"""Nothing in a file names a path that is followed, and nothing in it turns on code from elsewhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hostile.models import split_set, vocabulary
from support import gguf_bytes as gb
from support import small_models as small

import ggufmap
from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, GgufmapError
from ggufmap.mapping import resolve
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.config import build_config
from ggufmap.serving.preflight import preflight
from ggufmap.serving.serve import serve_command

NAMES = ["../../../../escaped", "/etc/escaped", "..", "a/../../escaped", "a\0b", "\x1b[2J", "x" * 5000, "C:\\escaped"]

BASE_MODEL: small.Metadata = {
    "general.base_model.count": (gb.UINT32, 1),
    "general.base_model.0.name": (gb.STRING, "evil/model"),
    "general.base_model.0.repo_url": (gb.STRING, "https://example.org/evil/model"),
    "general.source.repo_url": (gb.STRING, "https://example.org/evil/model"),
    "general.repo_url": (gb.STRING, "https://example.org/evil/model"),
    "llama.auto_map": (gb.STRING, "evil.Model"),
    "general.trust_remote_code": (gb.BOOL, 1),
    "tokenizer.huggingface.json": (gb.STRING, '{"auto_map": {"AutoTokenizer": "evil.Tokenizer"}}'),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))


def everything(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_s_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "a" / "b" / "c" / "d"
    path = small.write_llama(
        inside / "m.gguf", small.llama_metadata() | vocabulary() | {"general.name": (gb.STRING, name)}
    )
    before = everything(tmp_path)
    with open_checkpoint(path) as checkpoint:
        folder = build_model_dir(checkpoint, build_config(checkpoint, find_architecture("llama", "m.gguf")))
    made = everything(tmp_path) - before
    assert folder.is_relative_to(tmp_path / "cache" / "models")
    assert made and all(path.parts[0] == "cache" for path in made)
    assert not any("escaped" in part for path in made for part in path.parts)


@pytest.mark.parametrize("name", ["../../escaped", "/etc/escaped", "blk.0.attn_q.weight/../../x", "a\\..\\b"])
def test_a_tensor_s_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    import torch

    from ggufmap.errors import MappingError
    from ggufmap.stream.export import export

    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), small.tensor(name, 2)])
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture("llama", "m.gguf"))
        assert [x.tensor for x in plan.unmapped] == [name]
        with pytest.raises(MappingError):
            export(plan, checkpoint, tmp_path / "out", dtype=torch.float32, shard_bytes=1 << 20)
    assert not (tmp_path / "out").exists()


def test_export_writes_only_names_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import torch

    from ggufmap.stream.export import export

    meta = small.llama_metadata() | {"general.name": (gb.STRING, "../escaped")}
    path = small.write_llama(tmp_path / "in" / "m.gguf", meta)
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture("llama", "m.gguf"))
        export(plan, checkpoint, tmp_path / "out", dtype=torch.float32, shard_bytes=100_000)
    made = everything(tmp_path / "out")
    assert all(len(file.parts) == 1 and file.name.startswith("model") for file in made)
    assert {file.parts[0] for file in everything(tmp_path)} == {"in", "out"}


def test_splits_are_looked_for_beside_the_file_only(tmp_path: Path) -> None:
    """The set's names come from the name of the file that was given, never from a header."""
    files = split_set((0, "split.file", (gb.STRING, "../other-00002-of-00003.gguf")))
    inside = tmp_path / "inside"
    inside.mkdir()
    for name, data in files.items():
        (inside / name).write_bytes(data)
    second = inside / "s-00002-of-00003.gguf"
    second.rename(tmp_path / "other-00002-of-00003.gguf")
    with pytest.raises(FileError, match=r"1 of 3 splits are missing: s-00002-of-00003\.gguf"):
        open_checkpoint(inside / "s-00001-of-00003.gguf")


def test_a_name_with_dots_stays_in_its_folder(tmp_path: Path) -> None:
    files = split_set(prefix="..%2f..-..")
    inside = tmp_path / "inside"
    inside.mkdir()
    for name, data in files.items():
        (inside / name).write_bytes(data)
    with open_checkpoint(inside / next(iter(files))) as checkpoint:
        assert {Path(split.source.name).parent for split in checkpoint.splits} == {inside}


def test_a_link_in_place_of_a_split_is_another_file_and_is_checked_as_one(tmp_path: Path) -> None:
    """Links are followed (the hub's cache is made of them); what they lead to must fit the set."""
    files = split_set()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    second = tmp_path / "s-00002-of-00003.gguf"
    second.unlink()
    second.symlink_to("/etc/passwd")
    with pytest.raises(FileError, match=r"s-00002-of-00003.gguf: not a GGUF file"):
        open_checkpoint(tmp_path / "s-00001-of-00003.gguf")
    second.unlink()
    second.symlink_to("/dev/zero")
    with pytest.raises(FileError, match=r"1 of 3 splits are missing"):
        open_checkpoint(tmp_path / "s-00001-of-00003.gguf")
    second.unlink()
    second.symlink_to(tmp_path / "s-00001-of-00003.gguf")
    with pytest.raises(FileError, match=r"split.no is 0, expected 1"):
        open_checkpoint(tmp_path / "s-00001-of-00003.gguf")


def test_a_link_in_the_cache_is_not_written_through(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | vocabulary())
    with open_checkpoint(path) as checkpoint:
        config = build_config(checkpoint, find_architecture("llama", "m.gguf"))
        folder = build_model_dir(checkpoint, config)
        victim = tmp_path / "victim.json"
        victim.write_text("mine")
        (folder / "config.json").unlink()
        (folder / "config.json").symlink_to(victim)
        again = build_model_dir(checkpoint, config)
    assert again == folder
    assert victim.read_text() == "mine"
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert not os.path.islink(folder / "config.json")  # noqa: PTH114


def test_nothing_in_a_file_turns_on_remote_code(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | vocabulary() | BASE_MODEL)
    found = preflight(path, offline=True)
    with found.checkpoint:
        try:
            command = serve_command(found, [])
        except GgufmapError:
            pytest.skip("vLLM is not installed")
    (folder,) = [Path(x) for x in command.arguments if "/cache/models/" in x]
    assert not any("remote" in x for x in command.arguments)
    assert command.environment == {}
    for file in folder.glob("*"):
        text = file.read_text()
        for word in ("trust_remote_code", "auto_map", "evil", "example.org"):
            assert word not in text, (file.name, word)
    assert sorted(file.suffix for file in folder.iterdir() if file.suffix == ".py") == []


def test_the_one_module_that_is_written_is_ours(tmp_path: Path) -> None:
    """Qwen's tokenizer names a module of ours, which transformers does not load without trust_remote_code."""
    from ggufmap.modeldir.tokenizer import build_tokenizer

    meta = small.llama_metadata() | vocabulary() | BASE_MODEL | {"general.architecture": (gb.STRING, "qwen2")}
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", meta)) as checkpoint:
        files = build_tokenizer(checkpoint.metadata)
    assert list(files.modules) == ["tokenization_ggufmap.py"]
    assert "evil" not in json.dumps(files.config)
    assert files.config["auto_map"] == {"AutoTokenizer": ["tokenization_ggufmap.GgufTokenizer"] * 2}


def test_gguf_py_s_reader_is_not_used() -> None:
    """It hangs, reads overlaps and takes a string of 2^63 bytes for an empty one (docs/security.md)."""
    package = Path(ggufmap.__file__).parent
    files = list(package.rglob("*.py"))
    assert len(files) > 100
    assert [file.name for file in files if re.search("GGUFReader|gguf_reader", file.read_text(encoding="utf-8"))] == []
