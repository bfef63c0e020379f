"""Byte sources: where a checkpoint's bytes come from. A local file here; remote ones are in `ggufmap/remote/`."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Protocol, TypeAlias

from ggufmap.errors import FileError


class ByteSource(Protocol):
    """Random access to `size` bytes. `name` is what error messages call it."""

    @property
    def name(self) -> str:
        """How messages call the source."""
        ...

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`. Raises FileError when they are not there."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the writable byte `buffer` from `offset`. Raises FileError when the bytes are not there."""
        ...

    def advise(self, offset: int, length: int, *, needed: bool) -> None:
        """Say that a range will be read soon, or not again: a hint, never an error."""
        ...

    def require_unchanged(self) -> None:
        """Raise FileError when the bytes may be others than those that were there when the source was opened."""
        ...

    def close(self) -> None:
        """Release the source."""
        ...


class RemoteSource(ByteSource, Protocol):
    """A source whose header is fetched and kept; of what lies behind it only a few small pieces can be read."""

    def header_ends(self, offset: int) -> None:
        """Say that the header is parsed and ends at `offset`."""
        ...


class Remote(Protocol):
    """A file that is no local one: what a Path is to a LocalFile. Its `str()` carries no credentials."""

    @property
    def name(self) -> str:
        """The file's name in its folder."""
        ...

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        ...

    @property
    def suffix(self) -> str:
        """The suffix, with its dot."""
        ...

    @property
    def parent(self) -> str:
        """How messages call the folder."""
        ...

    def with_name(self, name: str) -> Remote:
        """Another file of the same folder."""
        ...

    def is_file(self) -> bool:
        """False when it is known not to be there."""
        ...

    def projectors(self) -> list[Remote]:
        """The multimodal projectors that belong to it, as far as the folder can be listed."""
        ...

    def open(self) -> RemoteSource:
        """Open it. Raises GgufmapError kinds when it cannot be reached."""
        ...


Place: TypeAlias = Path | Remote
"""Where a file is."""


class LocalFile:
    """A regular local file read with `pread`: no shared position, no mmap, so a truncation is an error, not SIGBUS."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises FileError when it does not exist, cannot be read or is no regular file."""
        self.path = path
        try:
            # O_NONBLOCK: opening a FIFO must answer "not a regular file", not wait for a writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as e:
            raise FileError(f"{path}: cannot be opened: {os.strerror(e.errno or 0)}", hint=_hint(e)) from e
        stat = os.fstat(self._fd)
        if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file() hides OSError the same way
            os.close(self._fd)
            raise FileError(f"{path}: not a regular file", hint="MODEL is a .gguf file, or a folder with one model.")
        self._size = stat.st_size
        self._identity = _identity(stat)

    @property
    def name(self) -> str:
        """The path, as text."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Size in bytes when the file was opened."""
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource.read."""
        if offset < 0 or length < 0 or length > self._size - offset:
            raise FileError(f"{self.name}: {length} bytes wanted at offset {offset}, the file has {self._size}")
        with contextlib.suppress(OSError):  # which `read_into` meets again, and names
            found = os.pread(self._fd, length, offset)
            if len(found) == length:
                return found
        buffer = bytearray(length)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See ByteSource.read_into."""
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(self._fd, [buffer[done:]], offset + done)
            except OSError as e:
                where = f"{self.name}: reading {len(buffer)} bytes at offset {offset} failed"
                raise FileError(
                    f"{where}: {os.strerror(e.errno or 0)}", hint="Check the disk and the system's log."
                ) from e
            if got == 0:
                raise FileError(
                    f"{self.name}: ends at byte {offset + done}, {len(buffer) - done} bytes before the end of a read",
                    hint="The file was truncated or replaced after it was opened.",
                )
            done += got

    def advise(self, offset: int, length: int, *, needed: bool) -> None:
        """See ByteSource.advise: the page cache is filled ahead, or freed."""
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        advice = os.POSIX_FADV_WILLNEED if needed else os.POSIX_FADV_DONTNEED
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, offset, length, advice)

    def require_unchanged(self) -> None:
        """See ByteSource.require_unchanged: the path still leads to the same file, not written to since."""
        try:
            same = _identity(self.path.stat()) == self._identity
        except OSError:
            same = False
        if not same:
            raise FileError(
                f"{self.name}: was replaced or changed while it was read",
                hint="What was loaded may be of two files; start again when nothing writes to it.",
            )

    def close(self) -> None:
        """Close the file; reading afterwards is an error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _identity(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _hint(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "Check the file's permissions."
    if error.errno == errno.ENOENT:
        return "Check the path; quote it when it has spaces."
    return "Check the path."
