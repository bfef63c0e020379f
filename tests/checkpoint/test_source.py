"""Local files: exact reads, and a clear refusal of everything that is no regular file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.unprivileged import without_root

from ggufmap.checkpoint import open_checkpoint
from ggufmap.checkpoint.source import LocalFile
from ggufmap.errors import FileError


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LocalFile]:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    source = LocalFile(path)
    yield source
    source.close()


def test_reads_exactly_what_is_asked(file: LocalFile) -> None:
    assert file.size == 100
    assert file.read(10, 3) == b"\x0a\x0b\x0c"
    assert file.read(100, 0) == b""
    buffer = bytearray(2)
    file.read_into(98, memoryview(buffer))
    assert buffer == b"\x62\x63"


def test_a_read_that_the_system_answers_in_parts_is_whole(file: LocalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal, or a file system over a network, may do."""
    one, several = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: one(fd, min(length, 7), offset))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: several(fd, [buffers[0][:7]], offset))
    assert file.read(3, 50) == bytes(range(3, 53))


@pytest.mark.parametrize(("offset", "length"), [(99, 2), (101, 0), (-1, 1), (0, -1), (1 << 63, 1), (0, 1 << 63)])
def test_reads_outside_the_file_are_refused(file: LocalFile, offset: int, length: int) -> None:
    with pytest.raises(FileError, match=f"{length} bytes wanted at offset {offset}, the file has 100"):
        file.read(offset, length)


def test_read_into_beyond_the_end_says_how_much_is_missing(file: LocalFile) -> None:
    with pytest.raises(FileError, match="ends at byte 100, 6 bytes before the end of a read") as e:
        file.read_into(96, memoryview(bytearray(10)))
    assert "truncated or replaced" in str(e.value.hint)


def test_reading_a_closed_file_is_an_error_and_closing_twice_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    source = LocalFile(path)
    source.close()
    source.close()
    with pytest.raises(FileError, match="reading 3 bytes at offset 0 failed: Bad file descriptor"):
        source.read(0, 3)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.gguf: cannot be opened: No such file or directory") as e:
        open_checkpoint(tmp_path / "none.gguf")
    assert "Check the path" in str(e.value.hint)


def test_fifo_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(FileError, match="not a regular file"):
        open_checkpoint(tmp_path / "m.gguf")


def test_device_is_no_model() -> None:
    with pytest.raises(FileError, match="/dev/zero: not a regular file"):
        open_checkpoint(Path("/dev/zero"))


def test_directory_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a regular file"):
        LocalFile(tmp_path)


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_unreadable_says_so(closed: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name) / "in"
        folder.mkdir()
        path = folder / "m.gguf"
        path.write_bytes(b"GGUF")
        Path(name).chmod(0o755)
        (path if closed == "file" else folder).chmod(0)
        with without_root(), pytest.raises(FileError, match=r"m\.gguf: cannot be opened: Permission denied") as e:
            open_checkpoint(path)
        if closed == "folder":
            with without_root(), pytest.raises(FileError, match="in: cannot be listed: Permission denied"):
                open_checkpoint(folder)
            folder.chmod(0o755)
    assert e.value.hint == "Check the file's permissions."


def test_name_too_long_for_the_system() -> None:
    with pytest.raises(FileError, match="cannot be opened: File name too long"):
        open_checkpoint(Path("x" * 300 + ".gguf"))


def test_nothing_stays_open_after_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"<html>")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for bad in (path, tmp_path / "none.gguf", Path("/dev/null")):
        with pytest.raises(FileError):
            open_checkpoint(bad)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
