"""A forward reader over a byte source: a small window in memory, every length checked before it is used."""

from __future__ import annotations

import struct

from ggufmap.checkpoint import limits
from ggufmap.checkpoint.source import ByteSource
from ggufmap.errors import FileError

_WINDOW = 1 << 20
_FIRST_WINDOW = 64 << 10
_TOO_SHORT = "The header is cut off or damaged; fetch the file again."


class Cursor:
    """Reads a header front to back. `context` names what is being read, for error messages."""

    def __init__(self, source: ByteSource, order: str, start: int) -> None:
        self.source = source
        self.order = order
        self.context = "header"
        self._base = start
        self._at = 0
        self._window = b""
        self._chunk = _FIRST_WINDOW
        self._nested = 0

    @property
    def position(self) -> int:
        """Absolute offset of the next byte."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes between here and the end of the source."""
        return self.source.size - self.position

    def error(self, problem: str, *, hint: str | None = None) -> FileError:
        """A FileError that says where in which file."""
        return FileError(f"{self.source.name}: {self.context}: {problem} (offset {self.position})", hint=hint)

    def unpack(self, code: str) -> int | float:
        """One number of the given `struct` code, in the file's byte order."""
        size = struct.calcsize("<" + code)
        self._need(size)
        (value,) = struct.unpack_from(self.order + code, self._window, self._at)
        self._at += size
        number: int | float = value
        return number

    def count(self, what: str, limit: int, unit_bytes: int) -> int:
        """A 64-bit count of things that take at least `unit_bytes` each, checked against limit and size."""
        number = int(self.unpack("Q"))
        if number > limit:
            raise self.error(f"{what} {number} exceeds the limit {limit}")
        if number * unit_bytes > self.remaining:
            needed = f"{what} {number} needs {number * unit_bytes} bytes or more"
            raise self.error(f"{needed}, {self.remaining} remain", hint=_TOO_SHORT)
        return number

    def string(self, limit: int) -> bytes:
        """A length-prefixed string of at most `limit` bytes."""
        size = self.count("string length", limit, unit_bytes=1)
        self._need(size)
        found = self._window[self._at : self._at + size]
        self._at += size
        return found

    def text(self, what: str, limit: int) -> str:
        """A length-prefixed UTF-8 string."""
        raw = self.string(limit)
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise self.error(f"{what} {raw[:60]!r} is not valid UTF-8 (byte {e.start})") from e

    def skip(self, size: int) -> None:
        """Step over `size` bytes without reading them."""
        if size > self.remaining:
            raise self.error(f"{size} bytes wanted, {self.remaining} remain", hint=_TOO_SHORT)
        self._at += size
        if self._at > len(self._window):
            self._base, self._at, self._window = self.position, 0, b""

    def skip_strings(self, count: int) -> None:
        """Step over `count` length-prefixed strings; a tight loop, since vocabularies are long."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        while count:
            window, at, end = self._window, self._at, len(self._window)
            while count and at + 8 <= end:
                following = at + 8 + unpack(window, at)[0]
                if following > end:
                    break
                at = following
                count -= 1
            self._at = at
            if count:  # the next string crosses the window's edge
                size = self.count("string length", limits.STRING_BYTES, unit_bytes=1)
                self.skip(size)
                count -= 1

    def spend_nested(self, count: int) -> None:
        """Account for arrays inside arrays: their number is limited over the whole header."""
        self._nested += count
        if self._nested > limits.NESTED_ARRAYS:
            raise self.error(f"more than {limits.NESTED_ARRAYS} arrays inside arrays")

    def _need(self, size: int) -> None:
        if self._at + size <= len(self._window):
            return
        if size > self.remaining:
            raise self.error(f"truncated: {size} bytes wanted, {max(self.remaining, 0)} remain", hint=_TOO_SHORT)
        self._base, self._at = self.position, 0
        self._window = self.source.read(self._base, min(max(size, self._chunk), self.source.size - self._base))
        self._chunk = _WINDOW
