"""How slow this machine is at the moment: limits in seconds were set on one that nobody else was using."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from typing import TypeVar

_USUAL_S = 0.05  # CPU time of `_work` there
_MOST = 3.0  # beyond this a limit would say nothing
_Result = TypeVar("_Result")
_FRESH = 64 << 20  # bytes


def slower() -> float:
    """How many times as long as usual a fixed piece of work takes now, in CPU time: 1 or more, the median of three.

    Neighbours take caches and memory bandwidth, and a virtual machine's host the memory itself: a process's clock
    leaves out none of it.
    """
    return min(_MOST, max(1.0, sorted(_work() for _ in range(3))[1] / _USUAL_S))


def usual_seconds(work: Callable[[], _Result], limit: float) -> tuple[float, _Result]:
    """CPU seconds of `work` at the usual speed: of the first of three runs that stays below `limit`, or the least.

    And what the last run returned.
    """
    found: list[float] = []
    while True:
        before, started = slower(), time.process_time()
        result = work()
        spent = time.process_time() - started
        found.append(spent / max(before, slower()))
        if found[-1] < limit or len(found) == 3:
            return min(found), result


def _work() -> float:
    """Strings, a dictionary and fresh memory, as parsers use them. CPU seconds."""
    started = time.process_time()
    table: dict[str, int] = {}
    for i in range(60_000):
        key = f"blk.{i % 977}.ffn_{i & 7}"
        table[key] = table.get(key, 0) + len(key.split("."))
    with mmap.mmap(-1, _FRESH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:: mmap.PAGESIZE] = bytes(_FRESH // mmap.PAGESIZE)
    return time.process_time() - started
