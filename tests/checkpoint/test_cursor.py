"""Stepping over strings: fast where they are short, and never past one that is not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from ggufmap.checkpoint import cursor as cursor_module
from ggufmap.checkpoint.cursor import Cursor


class Bytes:
    """A byte source in memory."""

    name = "bytes"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def advise(self, offset: int, length: int, *, needed: bool) -> None: ...

    def require_unchanged(self) -> None: ...

    def close(self) -> None: ...


def text(random: random.Random) -> bytes:
    return bytes(random.randint(97, 122) for _ in range(random.randint(1, 9)))


def zeros(random: random.Random) -> bytes:
    """What looks like the lengths of other strings."""
    return bytes(random.choice((0, 0, 0, 0, 0, 0, 0, 1, 7, 8)) for _ in range(random.randint(0, 40)))


def lengths(random: random.Random) -> bytes:
    """Around the longest that one byte says."""
    return bytes(random.choice((0, 1, 97)) for _ in range(random.choice((0, 1, 3, 7, 255, 256, 300, 5000))))


@pytest.mark.parametrize("window", [100, 1000, 1 << 18])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("make", [text, zeros, lengths, lambda _: b""])
def test_strings_are_passed_over_to_where_they_end(
    make: Callable[[random.Random], bytes], order: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_module, "_WINDOW", window)
    monkeypatch.setattr(cursor_module, "_FIRST_WINDOW", 64)
    chance = random.Random(window)
    for _ in range(30):
        before = chance.randint(0, 30)
        strings = [make(chance) for _ in range(chance.randint(0, 400))]
        stored = b"".join(struct.pack(order + "Q", len(string)) + string for string in strings)
        count = chance.randint(0, len(strings))
        found = Cursor(Bytes(bytes(before) + stored + b"more of it"), order, before)
        found.skip_strings(count)
        assert found.position == before + sum(8 + len(string) for string in strings[:count])
