"""The cache: filled once, by whoever is first, and never seen half full."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ggufmap.errors import FileError, UsageError
from ggufmap.modeldir.cache import cache_root, filled_once


def complete(folder: Path) -> bool:
    return (folder / "b").is_file()


class Filler:
    """Writes two files and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "a").write_text("1")
        (folder / "b").write_text("2")


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFMAP_CACHE", "/x/y")
    assert cache_root() == Path("/x/y")
    monkeypatch.delenv("GGUFMAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/z")
    assert cache_root() == Path("/z/ggufmap")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_root() == Path("/home/me/.cache/ggufmap")


def test_is_filled_once(tmp_path: Path) -> None:
    fill, folder = Filler(), tmp_path / "deep" / "er" / "x"
    for _ in range(2):
        assert filled_once(folder, fill, complete) == folder
    assert fill.calls == 1
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    assert [path.name for path in folder.parent.iterdir()] == ["x"]  # no scratch left
    assert folder.stat().st_mode & 0o777 == 0o755


def test_what_is_incomplete_is_replaced(tmp_path: Path) -> None:
    fill, folder = Filler(), tmp_path / "x"
    folder.mkdir()
    (folder / "a").write_text("old")
    (folder / "stale").write_text("old")
    filled_once(folder, fill, complete)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    assert (folder / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise FileError("the file is bad")

    with pytest.raises(FileError, match="the file is bad"):
        filled_once(tmp_path / "x", fail, complete)
    assert list(tmp_path.iterdir()) == []


def test_many_at_once_see_whole_folders_only(tmp_path: Path) -> None:
    folder, fill, seen = tmp_path / "x", Filler(), []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        found = filled_once(folder, fill, complete)
        seen.append(sorted(path.name for path in found.iterdir()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [["a", "b"]] * 8
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_place_that_cannot_be_written_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/deep: cannot be written: Not a directory|cannot be written") as e:
        filled_once(tmp_path / "file" / "deep" / "x", Filler(), complete)
    assert str(tmp_path / "file") in e.value.message
    assert "GGUFMAP_CACHE" in str(e.value.hint)
    with pytest.raises(UsageError) as e:
        filled_once(tmp_path / "file" / "x", Filler(), complete, hint="Elsewhere, please.")
    assert e.value.hint == "Elsewhere, please."
