"""No file makes the parser take more than 64 MiB and four times its header, or two seconds per 100 MB of it begun."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import bounds_worker
from hostile.bounds_worker import MEMORY_FACTOR, MEMORY_FLOOR, PER_BYTES, SECONDS
from hostile.corpus import CASES, write
from support.gguf_bytes import ARRAY, BOOL, STRING, UINT8, UINT32, UINT64
from support.speed import slower

from ggufmap.checkpoint import limits

_LETTERS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"


def label(number: int) -> bytes:
    """A name of three bytes with its length, a different one for each number below 2^18."""
    return struct.pack("<Q3s", 3, bytes(_LETTERS[number >> shift & 63] for shift in (0, 6, 12)))


def pair(name: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def array(name: bytes, kind: int, count: int, data: bytes) -> bytes:
    return pair(name, ARRAY, struct.pack("<IQ", kind, count) + data)


def keys() -> Iterator[bytes]:
    for i in range(limits.KEYS.most - 10):
        yield label(i) + struct.pack("<IQ", UINT64, (1 << 63) + i)


def nested() -> Iterator[bytes]:
    count = limits.NESTED_ARRAYS.most
    yield array(b"nested", ARRAY, count, struct.pack("<IQ", UINT8, 0) * count)


def strings() -> Iterator[bytes]:
    yield array(b"strings", STRING, limits.STRINGS.most, bytes(8 * limits.STRINGS.most))


def bools() -> Iterator[bytes]:
    yield array(b"bools", BOOL, 100 << 20, bytes(100 << 20))


def long_strings() -> Iterator[bytes]:
    for i in range(3):
        yield pair(b"long%d" % i, STRING, struct.pack("<Q", limits.STRING_BYTES.most) + bytes(limits.STRING_BYTES.most))


def long_keys() -> Iterator[bytes]:
    """A character beyond the BMP makes Python take four bytes for each of the others."""
    for i in range(1000):
        yield pair(b"%08d" % i + "\N{GRINNING FACE}".encode() + b"x" * (limits.KEY_BYTES.most - 12), UINT8, b"\1")


def everything() -> Iterator[bytes]:
    for part in (keys, nested, strings):
        yield from part()


def tensor_table() -> Iterator[bytes]:
    """As many tensors as may be, with numbers that Python does not share, of a type that is not known."""
    for i in range(limits.TENSORS.most):
        yield label(i) + struct.pack("<IQQQQIQ", 4, (1 << 15) + i, 1 << 15, 1 << 9, 1, 900, i << 40)


WORST: dict[str, tuple[Callable[[], Iterator[bytes]] | None, bool]] = {
    "keys": (keys, False),
    "arrays in arrays": (nested, False),
    "strings in arrays": (strings, False),
    "bools": (bools, False),
    "long strings": (long_strings, False),
    "long keys": (long_keys, False),
    "tensors": (None, True),
    "all of it": (everything, True),
}


def build(path: Path, metadata: Callable[[], Iterator[bytes]] | None, with_tensors: bool) -> int:
    """Write a header of such parts; its size."""
    parts = [] if metadata is None else list(metadata())
    rows = list(tensor_table()) if with_tensors else []
    count = len(parts) + 1
    alignment = pair(b"general.alignment", UINT32, struct.pack("<I", 8))
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(rows), count) + alignment)
        file.writelines(parts)
        file.writelines(rows)
        return file.tell()


def run(files: list[Path], size: int) -> list[dict[str, Any]]:
    """Open them in a process that is ended when it goes far beyond what is allowed."""
    space, seconds = MEMORY_FLOOR + MEMORY_FACTOR * size, SECONDS * math.ceil(size / PER_BYTES)
    # Address space is more than memory: it counts what is reserved. The measured peak is the test.
    limits_ = [str(2 * space), str(10 * math.ceil(seconds) + 10 * len(files))]
    command = [sys.executable, bounds_worker.__file__, *limits_, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", WORST)
def test_the_worst_headers_stay_within_bounds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "worst.gguf"
    size = build(path, *WORST[name])
    (found,) = run([path], size)
    path.unlink()
    assert found["message"] is None
    assert found["memory"] <= MEMORY_FLOOR + MEMORY_FACTOR * size
    assert found["seconds"] <= SECONDS * math.ceil(size / PER_BYTES) * slower()


def test_the_corpus_stays_within_bounds(tmp_path: Path) -> None:
    files = []
    for index, case in enumerate(CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        files.append(write(case, folder))
    for case, file, found in zip(CASES, files, run(files, 0), strict=True):
        assert found["memory"] <= MEMORY_FLOOR + MEMORY_FACTOR * file.stat().st_size, case.name
        assert found["seconds"] <= SECONDS * slower(), case.name
