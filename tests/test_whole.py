"""A file in another's place: whole, with its permissions, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ggufmap.whole import replace_file


def test_the_content_and_the_permissions_are_those_that_were_given(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for content, mode in ((b"first", 0o644), (b"second\n", 0o600), (b"", 0o755)):
        replace_file(path, content, mode)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o7777 == mode
    assert list(tmp_path.iterdir()) == [path]


def test_a_hard_link_keeps_the_old_bytes(tmp_path: Path) -> None:
    path, link = tmp_path / "f", tmp_path / "link"
    path.write_bytes(b"old")
    link.hardlink_to(path)
    replace_file(path, b"new", 0o644)
    assert (path.read_bytes(), link.read_bytes()) == (b"new", b"old")


@pytest.mark.parametrize("fails", ["fsync", "chmod", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if fails == "fsync" else (Path, fails)), full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new", 0o644)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
