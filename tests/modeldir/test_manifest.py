"""The manifest names the GGUF file of a model directory, or says what is wrong with the directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggufmap.errors import FileError
from ggufmap.modeldir.manifest import MANIFEST, read_manifest


def test_reads_what_was_written(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"gguf": "/a/b.gguf", "header_hash": "abc", "more": 1}))
    found = read_manifest(tmp_path)
    assert (found.gguf, found.header_hash) == (Path("/a/b.gguf"), "abc")


def test_a_folder_that_ggufmap_did_not_make(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"is not a folder made by ggufmap \(ggufmap\.json: No such file") as e:
        read_manifest(tmp_path)
    assert "ggufmap serve MODEL" in str(e.value.hint)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"gguf": 1, "header_hash": "x"}', '{"gguf": "x"}', "null", "\xff"]
)
def test_a_broken_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError, match="broken manifest") as e:
        read_manifest(tmp_path)
    assert "Delete the folder" in str(e.value.hint)
