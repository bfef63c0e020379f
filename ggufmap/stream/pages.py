"""Huge pages for what a load writes to: in small ones, new memory takes the kernel longer than decoding takes us.

Linux gives them to whoever asks, unless /sys/kernel/mm/transparent_hugepage/enabled says never. They are not always at
hand: free memory may be in pieces, or a virtual machine's host may have to find each page first. So a load looks at
what they take, beside small ones, and asks for no more when those come faster.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import torch

_FOLDER = Path("/sys/kernel/mm/transparent_hugepage")
_LARGEST = 32 << 20  # bytes: with 64 KiB base pages a huge one has 512 MiB, and few parameters hold a whole one
_LOOKS = 5  # the median of so many decides
_SELDOM = 8  # and then one of so many pieces is looked at
_TRIES = 3
_PART = 8  # of a huge page's memory is enough to tell how long it takes in small pages
_GAP = 64 << 10  # bytes between two tensors whose pages may be asked for together: what malloc keeps for itself


class HugePages:
    """Asks for huge pages for the memory of `tensors` (those on the CPU), until they are not worth it."""

    def __init__(self, tensors: Iterable[torch.Tensor] = (), clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock  # of this thread's work alone: not of waiting for Python's lock
        self._took: deque[float] = deque(maxlen=_LOOKS)
        self._pieces = 0
        self._lock = threading.Lock()
        self._size = size = _size()
        self._asked = [span for span in _spans(tensors, size) if _advise(span, mmap.MADV_HUGEPAGE)] if size else []
        self._small = min(self._time_small() for _ in range(_TRIES)) if self._asked else 0.0

    @property
    def asked(self) -> int:
        """Bytes that huge pages are being asked for."""
        return sum(len(span) for span in self._asked)

    def also(self, memory: torch.Tensor) -> None:
        """Ask for `memory`, too, if it is new and they are worth it."""
        with self._lock:
            if self._asked:
                self._asked += [span for span in _spans([memory], self._size) if _advise(span, mmap.MADV_HUGEPAGE)]

    def before(self, part: torch.Tensor) -> None:
        """All of `part` is about to be written, by this thread: see how long one of its pages takes, now and then."""
        if not self._asked:
            return
        self._pieces += 1  # a lost count does not matter
        if len(self._took) == _LOOKS and self._pieces % _SELDOM:
            return
        if part.device.type != "cpu" or not part.is_contiguous():
            return
        start = part.data_ptr()
        first = -(-start // self._size) * self._size
        if first + self._size > start + part.nbytes:
            return
        started = self._clock()
        ctypes.memset(first, 0, 1)  # the whole page comes with its first byte
        took = self._clock() - started
        with self._lock:
            self._took.append(took)
            if len(self._took) == _LOOKS and median(self._took) > self._small:
                for span in self._asked:
                    _advise(span, mmap.MADV_NOHUGEPAGE)
                self._asked = []

    def _time_small(self) -> float:
        """Seconds that a huge page's worth of new memory takes in small pages."""
        nbytes = self._size // _PART
        with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            place = ctypes.c_char.from_buffer(memory)
            started = self._clock()
            ctypes.memset(ctypes.byref(place), 1, nbytes)
            took = self._clock() - started
            del place  # the memory cannot go while something looks into it
        return took * _PART


def _size() -> int:
    """Bytes of a huge page; 0 where none are to be had."""
    try:
        allowed = "[never]" not in (_FOLDER / "enabled").read_text()
        size = int((_FOLDER / "hpage_pmd_size").read_text())
    except (OSError, ValueError):  # not Linux, or a kernel without them
        return 0
    return size if allowed and size <= _LARGEST and hasattr(mmap, "MADV_HUGEPAGE") else 0


def _spans(tensors: Iterable[torch.Tensor], size: int) -> list[range]:
    """The addresses of whole huge pages in the tensors' memory, neighbours as one."""
    found: list[range] = []
    for start, nbytes in sorted((t.data_ptr(), t.nbytes) for t in tensors if t.device.type == "cpu"):
        if found and start <= found[-1].stop + _GAP:
            found[-1] = range(found[-1].start, max(found[-1].stop, start + nbytes))
        else:
            found.append(range(start, start + nbytes))
    inner = (range(-(-span.start // size) * size, span.stop // size * size) for span in found)
    return [span for span in inner if span]


def _advise(span: range, advice: int) -> bool:
    """Whether the kernel took the advice for this memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    return not libc.madvise(ctypes.c_void_p(span.start), ctypes.c_size_t(len(span)), ctypes.c_int(advice))
