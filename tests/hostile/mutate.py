"""Mutations of files by a seeded generator: what a fuzzer without feedback does, the same way every time."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence

_BYTES = (0, 1, 2, 4, 7, 8, 9, 12, 13, 32, 127, 128, 255)
_NUMBERS = (0, 1, 2, 5, 8, 31, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)
_MOST = 4


def _byte(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice(_BYTES) if rng.random() < 0.5 else rng.randrange(256)


def _bit(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _number(rng: random.Random, data: bytearray) -> None:
    at, value = rng.randrange(len(data)), rng.choice(_NUMBERS)
    raw = struct.pack("<Q", value) if rng.random() < 0.5 else struct.pack("<I", value & 0xFFFFFFFF)
    data[at : at + len(raw)] = raw[: len(data) - at]


def _cut(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 17)]


def _copy(rng: random.Random, data: bytearray) -> None:
    start, at = rng.randrange(len(data)), rng.randrange(len(data))
    data[at:at] = data[start : start + rng.randrange(1, 65)]


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 17))


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


_CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(_byte, _byte, _bit, _number, _number, _cut, _copy, _insert),
    _truncate,
)


def mutations(seeds: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Files without end, each a seed with a few changes, or two seeds joined."""
    rng = random.Random(seed)
    while True:
        data = bytearray(rng.choice(seeds))
        if rng.random() < 0.05 and data:
            other = rng.choice(seeds)
            data[rng.randrange(len(data)) :] = other[rng.randrange(len(other) + 1) :]
        for _ in range(rng.randrange(1, _MOST + 1)):
            if data:
                rng.choice(_CHANGES)(rng, data)
        yield bytes(data)
