"""Read-ahead: the coming bytes are in the page cache before they are asked for, and no further than the distance."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support.gguf_bytes import TensorSpec

from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.stream.ahead import ReadAhead

MIB = 1 << 20
COUNT, SIZE = 16, 4 * MIB


def cached(path: Path, offset: int) -> bool:
    """Whether a page is in the page cache. Asking by a read, even one that does not wait, would read ahead."""
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), mmap.PAGESIZE, offset=start, access=mmap.ACCESS_COPY) as page,
    ):
        found = ctypes.c_ubyte()
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        if ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(1), ctypes.byref(found)):
            pytest.skip("this system does not tell what is cached")
        gc.collect()  # what looks into the page must go before the page
    return bool(found.value & 1)


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """64 MiB of tensors, none of them in the page cache."""
    path = tmp_path / "m.gguf"
    tensors = [TensorSpec(f"t{i}", (SIZE // 4,), gb.F32) for i in range(COUNT)]
    path.write_bytes(gb.build([], tensors))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if cached(path, SIZE):
        pytest.skip("this file system keeps its pages")
    return path


def middle(checkpoint: Checkpoint, index: int) -> int:
    return checkpoint.tensors[f"t{index}"].offset + SIZE // 2


def test_what_comes_is_read_ahead_in_file_order_up_to_the_distance(cold: Path) -> None:
    with open_checkpoint(cold) as checkpoint:
        tensors = list(checkpoint.tensors.values())
        with ReadAhead(checkpoint, tensors, 4 * SIZE, forget=False) as ahead:
            assert soon(lambda: cached(cold, middle(checkpoint, 3)))
            assert not cached(cold, middle(checkpoint, COUNT - 1))  # the kernel may go a little further
            for _ in range(8):
                ahead.advance(SIZE)
            assert soon(lambda: ahead.advance(0) is not None or cached(cold, middle(checkpoint, 11)))
            assert cached(cold, middle(checkpoint, 0))


def test_what_lies_behind_is_forgotten_when_asked_for(cold: Path) -> None:
    with open_checkpoint(cold) as checkpoint:
        tensors = list(checkpoint.tensors.values())
        cold.read_bytes()
        assert cached(cold, middle(checkpoint, 0))
        with ReadAhead(checkpoint, tensors, 2 * SIZE, forget=True) as ahead:
            for _ in range(8):
                ahead.advance(SIZE)
            assert soon(lambda: ahead.advance(0) is not None or cached(cold, middle(checkpoint, 8)))
            assert cached(cold, middle(checkpoint, 0))  # threads may still have to read it
            ahead.leave(8 * SIZE)
            ahead.advance(SIZE)
            assert soon(lambda: ahead.advance(0) is not None or not cached(cold, middle(checkpoint, 0)))
            assert soon(lambda: ahead.advance(0) is not None or not cached(cold, middle(checkpoint, 4)))
            assert cached(cold, middle(checkpoint, 8))
