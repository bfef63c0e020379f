"""Progress of long transfers, on stderr: a bar for a person, a line now and then for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL_S = 5.0


@contextmanager
def load_progress(title: str, total: int, rank: int = 0, ranks: int = 1) -> Iterator[Callable[[int], None]]:
    """A callback that takes the bytes done since the last call, of `total`.

    On a terminal a bar, of rank 0 alone, since the ranks share the terminal; elsewhere a line per rank, at most one
    every few seconds. The rank is named when there are several.
    """
    title = "".join(c for c in title if c.isprintable()) + (f", rank {rank} of {ranks}" if ranks > 1 else "")
    if not sys.stderr.isatty():
        yield _Lines(title, total).advance
    elif rank:
        yield lambda _: None
    else:
        with _bar(title, total) as advance:
            yield advance


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(escape(title), total=total)
        yield lambda done: progress.advance(task, done)


class _Lines:
    """Writes how far it is, how fast and how long it will take, when the last line is old enough."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total = title, total
        self._done = 0
        self._started = self._written = time.monotonic()

    def advance(self, done: int) -> None:
        """`done` more bytes."""
        self._done += done
        now = time.monotonic()
        if now - self._written < INTERVAL_S or self._done >= self._total:
            return
        self._written = now
        speed = self._done / (now - self._started)
        left = (self._total - self._done) / speed if speed else 0.0
        size = f"{self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB"
        print(f"{self._title}: {size}, {speed / 1e9:.2f} GB/s, {left:.0f} s left", file=sys.stderr, flush=True)
