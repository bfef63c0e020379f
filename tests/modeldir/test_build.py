"""The model directory: everything vLLM needs beside the weights, in the cache or where it was asked for."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.converter import TinyFactory

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.errors import UsageError
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.config import ModelConfig, build_config
from ggufmap.modeldir.manifest import MANIFEST, read_manifest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def opened(path: Path) -> tuple[Checkpoint, ModelConfig]:
    checkpoint = open_checkpoint(path)
    return checkpoint, build_config(checkpoint, find_architecture(checkpoint.architecture, str(path)))


def build(path: Path, *, tokenizer: Path | None = None, output: Path | None = None, **values: object) -> Path:
    checkpoint, config = opened(path)
    with checkpoint:
        changed = replace(config, values={**config.values, **values})  # type: ignore[dict-item]
        return build_model_dir(checkpoint, changed, tokenizer=tokenizer, output=output)


def test_holds_config_tokenizer_template_and_manifest(tiny: TinyFactory) -> None:
    _, path = tiny("qwen3")
    folder = build(path)
    names = {file.name for file in folder.iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", MANIFEST}
    checkpoint, config = opened(path)
    with checkpoint:
        assert json.loads((folder / "config.json").read_text()) == config.values
        manifest = read_manifest(folder)
        assert (manifest.gguf, manifest.header_hash) == (path.resolve(), checkpoint.header_hash())
    assert 511 in json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


def test_is_made_once_per_file_and_config(tiny: TinyFactory, cache: Path) -> None:
    _, path = tiny("qwen3")
    first = build(path)
    assert first.parent == cache / "models"
    stamp = (first / "config.json").stat().st_mtime_ns
    assert build(path) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    assert build(path, max_position_embeddings=5) != first
    assert build(path) == first


def test_a_copy_elsewhere_is_another_file(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("qwen3")
    copy = tmp_path / "copy.gguf"
    os.link(path, copy)
    assert build(copy) != build(path)
    assert read_manifest(build(copy)).gguf == copy.resolve()


@pytest.mark.parametrize("spoil", ["config.json", "tokenizer.json", MANIFEST])
def test_a_spoilt_folder_is_made_again(tiny: TinyFactory, spoil: str) -> None:
    _, path = tiny("qwen3")
    folder = build(path)
    good = (folder / spoil).read_bytes()
    for spoilt in (None, b"", good + b"x"):
        (folder / spoil).unlink()
        if spoilt is not None:
            (folder / spoil).write_bytes(spoilt)
        assert build(path) == folder
        assert (folder / spoil).read_bytes() == good


@pytest.mark.parametrize("where", ["models", "tokenizers"])
def test_one_changed_byte_in_the_cache_is_noticed(tiny: TinyFactory, cache: Path, where: str) -> None:
    _, path = tiny("qwen3")
    good = (build(path) / "tokenizer.json").read_bytes()
    (cached,) = (cache / where).iterdir()
    spoilt = bytearray(good)
    spoilt[len(good) // 2] ^= 1
    (cached / "tokenizer.json").write_bytes(spoilt)
    if where == "tokenizers":  # what is copied from
        shutil.rmtree(cache / "models")
    assert (build(path) / "tokenizer.json").read_bytes() == good


def test_a_given_tokenizer_is_used(tiny: TinyFactory) -> None:
    model, path = tiny("qwen3")
    folder = build(path, tokenizer=model.folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (model.folder / name).read_bytes()
    assert not (folder / "model.safetensors").exists()
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    assert folder != build(path)


def test_a_given_tokenizer_that_changed_is_taken_anew(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("qwen3")
    given = tmp_path / "tok"
    given.mkdir()
    (given / "tokenizer.json").write_text('{"a": 1}')
    first = build(path, tokenizer=given)
    assert build(path, tokenizer=given) == first
    (given / "tokenizer.json").write_text('{"a": 2}')
    second = build(path, tokenizer=given)
    assert (second / "tokenizer.json").read_text() == '{"a": 2}'


def test_two_tokenizers_of_one_relative_name_are_two(
    tiny: TinyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = tiny("qwen3")
    found = []
    for where in ("here", "there"):
        (tmp_path / where / "tok").mkdir(parents=True)
        (tmp_path / where / "tok" / "tokenizer.json").write_text(json.dumps(where))
        monkeypatch.chdir(tmp_path / where)
        found.append((build(path, tokenizer=Path("tok")) / "tokenizer.json").read_text())
    assert found == ['"here"', '"there"']


def test_a_folder_without_a_tokenizer_is_refused(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("qwen3")
    for given in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="holds no tokenizer"):
            build(path, tokenizer=given)
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_output_is_a_new_or_an_empty_folder(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("qwen3")
    (tmp_path / "empty").mkdir()
    for output in (tmp_path / "new" / "er", tmp_path / "empty"):
        assert build(path, output=output) == output
        assert (output / MANIFEST).is_file()
        with pytest.raises(UsageError, match="is not empty") as e:
            build(path, output=output)
        assert e.value.hint == "Name a new folder."
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file; a folder is needed"):
        build(path, output=tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written") as e:
        build(path, output=tmp_path / "file" / "x")
    assert e.value.hint == "Name another folder."


def test_changing_the_output_changes_no_cache(tiny: TinyFactory, tmp_path: Path) -> None:
    """The folder is for a person to edit, in place too."""
    _, path = tiny("qwen3")
    output, cached = build(path, output=tmp_path / "out"), build(path)
    for file in output.iterdir():
        with file.open("r+b") as handle:
            handle.write(b"XXXX")
    for file in cached.iterdir():
        assert not file.read_bytes().startswith(b"XXXX"), file.name
    assert not (build(path, output=tmp_path / "again") / "tokenizer.json").read_bytes().startswith(b"XXXX")


def test_values_and_paths_that_utf_8_cannot_hold(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("qwen3")
    odd = tmp_path / os.fsdecode(b"m\xff.gguf")
    os.link(path, odd)
    folder = build(odd, odd_value="\ud800")
    assert read_manifest(folder).gguf == odd.resolve()
    assert json.loads((folder / "config.json").read_text())["odd_value"] == "\ud800"
