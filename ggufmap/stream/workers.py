"""The threads of a load, their reused buffers, and the memory that all of it may take together.

What a load holds beyond its destination is accounted here: a buffer per thread, taken once and reused for every piece,
and `hold` and `keep` for what does not fit one. Threads wait for memory; a single need beyond the limit is an error.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ggufmap.errors import UsageError
from ggufmap.stream.lanes import Lanes, host_memory
from ggufmap.stream.pages import HugePages

DEFAULT_LIMIT = 1 << 30
LEAST_LIMIT = 16 << 20
VALUE_BYTES = 8
"""Scratch memory of a value that is decoded: four bytes or less as it is stored, four decoded."""
EDGE = 64
"""Parts of a buffer begin on a cache line: so many bytes."""

_MAX_THREADS = 8
_MAX_PIECE = 1 << 21  # values: smaller pieces cost more calls than the caches save
_MIN_PIECE = 1 << 16  # values: less costs more in calls than another thread gains
_QUEUED = 256  # pieces that wait at most: they hold no memory, and a thread that never waits is not waited for
_BUFFER_SHARE = 4  # the threads' buffers take at most a quarter of the limit

Buffer = npt.NDArray[np.uint8]
_Item = TypeVar("_Item")


class Budget:
    """Bytes in use beside the destination: never more than `limit`. `peak` is the most there was."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        """Raises UsageError for a limit that is too small to work with."""
        if limit < LEAST_LIMIT:
            raise UsageError(
                f"{limit} bytes of host memory are too few to load with",
                hint=f"--max-host-memory {LEAST_LIMIT >> 20}Mi is the least.",
            )
        self.limit = limit
        self.peak = self.used = 0
        self._reserved = self._kept = 0
        self._changed = threading.Condition()

    def reserve(self, nbytes: int) -> None:
        """Account `nbytes` for good, or give them back when negative."""
        with self._changed:
            self._reserved += nbytes
            self._add(nbytes)

    @contextmanager
    def hold(self, nbytes: int, what: str) -> Iterator[None]:
        """Account `nbytes` in the block, after waiting until they are free. UsageError when they can never be."""
        with self._changed:
            self._require(nbytes, what)
            self._changed.wait_for(lambda: self.used + nbytes <= self.limit)
            self._add(nbytes)
        try:
            yield
        finally:
            with self._changed:
                self._add(-nbytes)

    def try_keep(self, nbytes: int) -> bool:
        """Account `nbytes` until `release`, if they are free at this moment."""
        with self._changed:
            free = self.used + nbytes <= self.limit
            if free:
                self._kept += nbytes
                self._add(nbytes)
            return free

    def keep(self, nbytes: int, what: str) -> None:
        """Account `nbytes` until `release`. UsageError when they are not free; to be called while no thread waits."""
        with self._changed:
            self._require(nbytes, what)
            self._kept += nbytes
            self._add(nbytes)

    def release(self) -> None:
        """Free all that was kept."""
        if not self._kept:
            return
        with self._changed:
            self._add(-self._kept)
            self._kept = 0

    def _require(self, nbytes: int, what: str) -> None:
        wanted = self._reserved + self._kept + nbytes
        if wanted > self.limit:
            raise UsageError(
                f"{what}: {wanted / 1e6:.0f} MB of host memory are needed at once, "
                f"{self.limit / 1e6:.0f} MB are allowed",
                hint="Raise --max-host-memory.",
            )

    def _add(self, nbytes: int) -> None:
        self.used += nbytes
        self.peak = max(self.peak, self.used)
        self._changed.notify_all()


class Workers:
    """Threads that fill pieces of a destination, and their buffers. A context manager that ends them.

    With `background`, work that is given to `each` goes on after it returns: until `drain`, or the end. The threads'
    buffers are `pinned` for destinations on a GPU, which they reach by `lanes`; `pages` are those of destinations here.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        threads: int | None = None,
        *,
        background: bool = False,
        pinned: bool = False,
        lanes: Lanes | None = None,
        pages: HugePages | None = None,
    ) -> None:
        self.background = background
        self.lanes = lanes or Lanes()
        self.pages = pages or HugePages()
        self._pinned = pinned
        self.pending: deque[Future[None]] = deque()
        self.done = 0
        """Pieces that are known to be done; those in `pending` were given after them."""
        self._large = False  # one that is pending may take memory beyond its thread's buffer
        self.budget = budget or Budget()
        self.threads = threads or min(_MAX_THREADS, _cores())
        buffers = self.threads + 1  # the caller's own thread works, too
        room = self.budget.limit // _BUFFER_SHARE // buffers // VALUE_BYTES
        self.piece = min(_MAX_PIECE, room // EDGE * EDGE)  # so that a full buffer ends on an edge, too
        """Values to decode at once at most."""
        self._buffer_bytes = self.piece * VALUE_BYTES
        self._reserved = buffers * self._buffer_bytes
        self.budget.reserve(self._reserved)
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="ggufmap")

    def __enter__(self) -> Workers:
        self._torch_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # each of our threads would start as many of its own
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        torch.set_num_threads(self._torch_threads)
        if kind is None or kind is GeneratorExit:
            self.drain()
        self._pool.shutdown(cancel_futures=True)
        self.budget.release()
        self.budget.reserve(-self._reserved)

    def piece_of(self, values: int, value_bytes: int = VALUE_BYTES) -> int:
        """The piece size that keeps all threads busy with `values` values, and what comes after them if it can.

        What takes fewer bytes of scratch memory a value, as packed rows do, is cut into fewer pieces: the time of each,
        beside that of its bytes, passes with Python's lock held, and a GPU's bus is fast.
        """
        most = self._buffer_bytes // value_bytes
        return most if self.background else min(most, max(_MIN_PIECE, -(-values // self.threads)))

    def fits(self, nbytes: int) -> bool:
        """Whether `scratch` of so many bytes is a thread's own buffer."""
        return nbytes <= self._buffer_bytes

    def each(self, work: Callable[[_Item], None], items: Iterable[_Item], *, large: bool = False) -> None:
        """`work` on every item, on the threads when there are several. The first error is raised, here or later.

        `large` work needs scratch memory that does not fit a thread's buffer.
        """
        found = list(items)
        self._large = self._large or large
        if self.threads == 1 or (len(found) == 1 and not self.background):
            for item in found:
                work(item)
            return
        for item in found:
            self.pending.append(self._pool.submit(work, item))
            if len(self.pending) >= _QUEUED:
                self._settle(_QUEUED // 2)
        if not self.background:
            self.drain()

    def drain(self) -> None:
        """Wait for all work that was given; the first error is raised, when nothing runs any more."""
        self._settle(0)
        self._large = False

    def _settle(self, left: int) -> None:
        """Wait until at most `left` pieces are pending: for all others together, to be woken only once."""
        try:
            surplus = max(len(self.pending) - left, 0)
            wait(list(islice(self.pending, surplus)), return_when=FIRST_EXCEPTION)
            for _ in range(surplus):
                self.pending.popleft().result()
                self.done += 1
        except BaseException:
            for future in self.pending:
                future.cancel()
            wait(self.pending)
            self.pending.clear()
            raise

    def keep(self, nbytes: int, what: str) -> None:
        """Account `nbytes` until the budget's `release`; where pending work may want them, after that is done."""
        if self._large or not self.budget.try_keep(nbytes):
            self.drain()
            self.budget.keep(nbytes, what)

    @contextmanager
    def scratch(self, nbytes: int, what: str) -> Iterator[Buffer]:
        """At least `nbytes` of memory for the block: this thread's buffer, or, for more than fits, some of its own."""
        if not self.fits(nbytes):
            with self.budget.hold(nbytes, what):
                yield host_memory(nbytes, pinned=False)  # locking it would take longer than it saves
            return
        buffer: Buffer | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = host_memory(self._buffer_bytes, pinned=self._pinned)
            if not self._pinned:
                self.pages.also(torch.from_numpy(buffer))
        yield buffer


def _cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
