"""A remote file as a byte source: its header, fetched in growing windows, and little else."""

from __future__ import annotations

from ggufmap.errors import FileError
from ggufmap.remote.cache import Entry, find, keep
from ggufmap.remote.limits import RemoteLimits
from ggufmap.remote.reader import Reader

_PROBE = 64
"""Bytes that are asked for when the header may be in the cache: the answer says whether it is still the same."""


class RemoteFile:
    """See RemoteSource. All bytes are of the version of the first answer, or there is an error."""

    def __init__(self, reader: Reader, limits: RemoteLimits) -> None:
        """Asks for the start of the file. Raises FileError when it cannot be had."""
        self._reader = reader
        self._limits = limits
        self._parsed = False
        self._asked = 0
        """Bytes that the parser wanted; it reads a little ahead, and will again when the header is in the cache."""
        cached = find(reader.cache_key)
        part = reader.fetch(0, limits.first_bytes if cached is None else _PROBE, None)
        self._version = part.version
        self._head = bytearray(part.data)
        self._cached = cached is not None and cached.version == part.version
        if cached is not None and self._cached:
            self._head = bytearray(cached.header)

    @property
    def name(self) -> str:
        """The reference, without credentials."""
        return self._reader.name

    @property
    def size(self) -> int:
        """Size of the file as the server says."""
        return self._version.size

    def read(self, offset: int, length: int) -> bytes:
        """See ByteSource.read."""
        if offset < 0 or length < 0 or length > self.size - offset:
            raise FileError(f"{self.name}: {length} bytes wanted at offset {offset}, the file has {self.size}")
        if not self._parsed:
            self._asked = max(self._asked, offset + length)
            self._grow(self._asked)
        if offset + length <= len(self._head):
            return bytes(self._head[offset : offset + length])
        if length > self._limits.piece_bytes:
            raise FileError(
                f"{self.name}: {length} bytes of weights are needed, and only headers are read over the network",
                hint="Download the file, then name it.",
            )
        return self._reader.fetch(offset, offset + length, self._version).data

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See ByteSource.read_into."""
        buffer[:] = self.read(offset, len(buffer))

    def advise(self, offset: int, length: int, *, needed: bool) -> None:
        """See ByteSource.advise: nothing is fetched ahead."""

    def header_ends(self, offset: int) -> None:
        """See RemoteSource.header_ends: the header is kept, and cached, and what was fetched behind it forgotten."""
        self._asked = max(self._asked, min(offset, self.size))
        self._grow(self._asked)
        self._parsed = True
        del self._head[self._asked :]
        if not self._cached and self._version.exact:
            keep(self._reader.cache_key, Entry(self._version, bytes(self._head)))

    def require_unchanged(self) -> None:
        """See ByteSource.require_unchanged: the server is asked."""
        self._reader.fetch(0, 1, self._version)

    def close(self) -> None:
        """Forget the header."""
        self._head.clear()

    def _grow(self, end: int) -> None:
        """Have the first `end` bytes."""
        if end > self._limits.header_bytes:
            raise FileError(
                f"{self.name}: its header goes on beyond {self._limits.header_bytes >> 20} MiB",
                hint="No known model has such a header. Download the file to look at it.",
            )
        while (have := len(self._head)) < end:
            first = self._limits.first_bytes
            stop = max(end, have + min(max(have, first), self._limits.window_bytes))
            self._head += self._reader.fetch(have, min(stop, self.size), self._version).data
