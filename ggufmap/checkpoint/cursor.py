"""A forward reader over a byte source: a small window in memory, every length checked before it is used."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ggufmap.checkpoint.limits import STRING_BYTES, Limit
from ggufmap.checkpoint.source import ByteSource
from ggufmap.errors import FileError

_WINDOW = 1 << 18
_FIRST_WINDOW = 64 << 10
_ONE_BY_ONE = 64  # strings, where one is not like the others
_TOO_SHORT = "The header is cut off or damaged; fetch the file again."
_SHOWN = 80


class Cursor:
    """Reads a header front to back. `where` says what is being read, for error messages."""

    def __init__(self, source: ByteSource, order: str, start: int) -> None:
        self.source = source
        self.order = order
        self.where: tuple[str, str] = ("header", "")
        self._size = source.size
        self._base = start
        self._at = 0
        self._window = b""
        self._chunk = _FIRST_WINDOW
        self._spent: dict[str, int] = {}
        self._structs: dict[str, struct.Struct] = {}

    @property
    def position(self) -> int:
        """Absolute offset of the next byte."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes between here and the end of the source."""
        return self._size - self._base - self._at

    def error(self, problem: str, *, hint: str | None = None) -> FileError:
        """A FileError that says where in which file."""
        kind, name = self.where
        place = f"{kind} {shortened(name)}" if name else kind
        return FileError(f"{self.source.name}: {place}: {problem} (offset {self.position})", hint=hint)

    def unpack(self, code: str) -> int | float:
        """One number of the given `struct` code, in the file's byte order."""
        number: int | float = self.record(code)[0]
        return number

    def record(self, codes: str) -> tuple[Any, ...]:
        """Several numbers of the given `struct` codes."""
        found = self._structs.get(codes)
        if found is None:
            found = self._structs[codes] = struct.Struct(self.order + codes)
        if self._at + found.size > len(self._window):
            self._need(found.size)
        values = found.unpack_from(self._window, self._at)
        self._at += found.size
        return values

    def count(self, limit: Limit, unit_bytes: int) -> int:
        """A 64-bit count of things that take at least `unit_bytes` each, checked against the limit and the size."""
        (number,) = self.record("Q")
        if not limit.least <= number <= limit.most:
            self.check(limit, number)
        if number * unit_bytes > self._size - self._base - self._at:
            needed = f"{limit.what} {number} needs {number * unit_bytes} bytes or more"
            raise self.error(f"{needed}, {self.remaining} remain", hint=_TOO_SHORT)
        return int(number)

    def check(self, limit: Limit, number: int) -> None:
        """Raise FileError when `number` is not within `limit`."""
        if not limit.least <= number <= limit.most:
            raise self.error(f"{limit.what} is {number}, allowed are {limit.least} to {limit.most}")

    def spend(self, limit: Limit, number: int) -> None:
        """Account for `number` things of which the whole header may have `limit`."""
        total = self._spent[limit.what] = self._spent.get(limit.what, 0) + number
        self.check(limit, total)

    def string(self, limit: Limit) -> bytes:
        """A length-prefixed string."""
        size = self.count(limit, unit_bytes=1)
        self._need(size)
        found = self._window[self._at : self._at + size]
        self._at += size
        return found

    def text(self, limit: Limit) -> str:
        """A length-prefixed string of UTF-8 without NUL: C programs would see only what stands before it."""
        raw = self.string(limit)
        try:
            found = raw.decode()
        except UnicodeDecodeError as e:
            raise self.error(f"{shortened(repr(raw))} is not valid UTF-8 (byte {e.start})") from e
        if "\0" in found:
            raise self.error(f"{shortened(repr(raw))} has a NUL character (byte {raw.index(0)})")
        return found

    def skip(self, size: int) -> None:
        """Step over `size` bytes without reading them."""
        if size > self.remaining:
            raise self.error(f"{size} bytes wanted, {self.remaining} remain", hint=_TOO_SHORT)
        self._at += size
        if self._at > len(self._window):
            self._base, self._at, self._window = self.position, 0, b""

    def skip_bools(self, count: int) -> None:
        """Step over `count` bools, each one byte that is 0 or 1."""
        while count:
            size = min(count, _WINDOW)
            self._need(size)
            other = self._window[self._at : self._at + size].translate(None, b"\0\1")
            if other:
                raise self.error(f"bool is {other[0]}, allowed are 0 and 1")
            self._at += size
            count -= size

    def skip_strings(self, count: int) -> None:
        """Step over `count` length-prefixed strings; vocabularies are long."""
        strings = _ShortStrings(self._window, self.order)
        while count:
            if strings.window is not self._window:
                strings = _ShortStrings(self._window, self.order)
            self._at, passed = strings.pass_over(self._at, count)
            count -= passed
            count -= self._skip_one_by_one(min(count, _ONE_BY_ONE))

    def _skip_one_by_one(self, count: int) -> int:
        """Step over up to `count` strings: to the last that begins in the window. How many."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        window, at, end = self._window, self._at, len(self._window)
        passed = 0
        while passed < count and at + 8 <= end:
            following = at + 8 + unpack(window, at)[0]
            if following > end:
                break
            at = following
            passed += 1
        self._at = at
        if passed < count:  # the next string crosses the window's edge
            self.skip(self.count(STRING_BYTES, unit_bytes=1))
            passed += 1
        return passed

    def _need(self, size: int) -> None:
        if self._at + size <= len(self._window):
            return
        if size > self.remaining:
            raise self.error(f"truncated: {size} bytes wanted, {max(self.remaining, 0)} remain", hint=_TOO_SHORT)
        self._base, self._at = self.position, 0
        self._window = self.source.read(self._base, min(max(size, self._chunk), self._size - self._base))
        self._chunk = _WINDOW


class _ShortStrings:
    """The places in a window where a string of less than 256 bytes may begin: a byte, and seven that are zero.

    Where one leads to the very next, and so on, no string of another kind can be between, if the first place is one.
    """

    def __init__(self, window: bytes, order: str) -> None:
        self.window = window
        data = np.frombuffer(window, dtype=np.uint8)
        zero = data == 0
        two = zero[:-1] & zero[1:]
        four = two[:-2] & two[2:]
        seven = np.flatnonzero(four[:-3] & four[3:])
        if order == "<":
            self._starts = seven[seven > 0] - 1
            lengths = data[self._starts]
        else:
            self._starts = seven[seven < len(data) - 7]
            lengths = data[self._starts + 7]
        leads_on = self._starts[:-1] + 8 + lengths[:-1] == self._starts[1:]
        self._ends = np.append(np.flatnonzero(~leads_on), len(self._starts) - 1)

    def pass_over(self, at: int, count: int) -> tuple[int, int]:
        """From the string at `at` over as many of `count` as lead to one another: where the next is, and how many."""
        first = int(np.searchsorted(self._starts, at))
        if first == len(self._starts) or self._starts[first] != at:
            return at, 0
        last = int(self._ends[np.searchsorted(self._ends, first)])
        passed = min(last - first, count)
        return int(self._starts[first + passed]), passed


def shortened(text: str) -> str:
    """A name from the file, cut to what a message can show."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
