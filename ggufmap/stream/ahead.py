"""Read-ahead: the kernel is told which bytes come next, a bounded distance ahead of where the stream is.

Loaders ask for a tensor, wait, and ask for the next: without this the disk would rest whenever they do not wait.
Nothing is held here; the bytes come into the page cache, which all ranks of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from ggufmap.checkpoint import Checkpoint, Tensor

_AHEAD_STEP = 1 << 19  # bytes per call: kernels cut longer requests short
_BEHIND_STEP = 1 << 24


class ReadAhead:
    """Follows the stream through `tensors`, which are read in this order. A context manager.

    With `forget`, what lies behind is dropped from the page cache again.
    """

    def __init__(self, checkpoint: Checkpoint, tensors: Sequence[Tensor], distance: int, *, forget: bool) -> None:
        self._sources = [split.source for split in checkpoint.splits]
        self._distance = distance
        self._forget = forget
        self._position = self._done = self._told = 0
        self._ahead = _steps(tensors, _AHEAD_STEP)
        self._behind = _steps(tensors, _BEHIND_STEP)
        self._advised = self._forgotten = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ggufmap-ahead")
        self._running: Future[None] | None = None

    def __enter__(self) -> ReadAhead:
        self.advance(0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)

    def advance(self, nbytes: int) -> None:
        """The stream is `nbytes` further. Returns at once; the thread is not asked for every vector."""
        self._position += nbytes
        behind = self._position - self._told >= min(_BEHIND_STEP, self._distance // 4)
        if self._running is None or (behind and self._running.done()):
            self._told = self._position
            self._running = self._thread.submit(self._advise)

    def leave(self, nbytes: int) -> None:
        """`nbytes` more were read, and nothing before them will be."""
        self._done += nbytes

    def _advise(self) -> None:
        while self._advised < self._position + self._distance and (step := next(self._ahead, None)):
            split, offset, length = step
            self._sources[split].advise(offset, length, needed=True)
            self._advised += length
        while self._forget and self._forgotten < self._done - self._distance and (step := next(self._behind, None)):
            split, offset, length = step
            self._sources[split].advise(0, offset + length, needed=False)  # a large folio only goes as a whole
            self._forgotten += length


def _steps(tensors: Sequence[Tensor], size: int) -> Iterator[tuple[int, int, int]]:
    """(split, offset, length) of everything, in order."""
    for tensor in tensors:
        for start in range(0, tensor.nbytes, size):
            yield tensor.split, tensor.offset + start, min(size, tensor.nbytes - start)
