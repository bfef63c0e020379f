"""How fast the file can be read: a sample of its bytes, past the page cache."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ggufmap.doctor.facts import ReadSpeed

SAMPLE = 256 << 20
_PIECE = 8 << 20
_SECTOR = 4096  # what O_DIRECT asks of offsets, lengths and buffers at most
_THREADS = 4
_SECONDS = 10.0
_DIRECT = getattr(os, "O_DIRECT", 0)


def read_speed(paths: Sequence[Path], sample: int = SAMPLE) -> ReadSpeed:
    """Read about `sample` bytes, in pieces spread evenly over `paths`, with several threads, for ten seconds at most.

    Where the file system knows no direct reads, the kernel is asked to drop the pages first. Raises OSError.
    """
    stats = [path.stat() for path in paths]
    total = sum(stat.st_size for stat in stats)
    pieces = list(_pieces([(path, stat.st_size) for path, stat in zip(paths, stats, strict=True)], sample))
    direct = bool(_DIRECT) and bool(pieces) and _takes_direct(pieces[0][0])
    end = time.perf_counter() + _SECONDS
    started = time.perf_counter()

    def read(piece: tuple[Path, int, int]) -> int:
        return _read(*piece, direct=direct) if time.perf_counter() < end else 0

    with ThreadPoolExecutor(_THREADS) as pool:
        done = sum(pool.map(read, pieces))
    return ReadSpeed(
        sampled=done,
        seconds=time.perf_counter() - started,
        total=total,
        how="past the page cache" if direct else "pages dropped first, as far as the file system does",
        holes=sum(stat.st_blocks * 512 for stat in stats) < total // 2,
    )


def _pieces(files: Sequence[tuple[Path, int]], sample: int) -> Iterator[tuple[Path, int, int]]:
    """(path, offset, length): every n-th piece of the files, so that together they are about `sample` bytes."""
    every = [(path, offset, min(_PIECE, size - offset)) for path, size in files for offset in range(0, size, _PIECE)]
    yield from every[:: max(1, len(every) * _PIECE // max(1, sample))]


def _takes_direct(path: Path) -> bool:
    try:
        _read(path, 0, _SECTOR, direct=True)
    except OSError:
        return False
    return True


def _read(path: Path, offset: int, length: int, *, direct: bool) -> int:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (_DIRECT if direct else 0))
    try:
        if not direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, offset, length, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(-1, -(-length // _SECTOR) * _SECTOR) as buffer, memoryview(buffer) as view:
            return os.preadv(file, [view], offset)
    finally:
        os.close(file)
