"""How slow this machine is at the moment: limits in seconds were set on one that nobody else was using."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """CPU seconds of `work` at the usual speed, and what it returned: `fastest` of three runs, for that `limit`."""

    def run() -> tuple[float, _Result]:
        before, started = slower(), time.process_time()
        result = work()
        spent = time.process_time() - started
        return spent / max(before, slower()), result

    return fastest(run, limit)


@dataclass(frozen=True)
class Measured:
    """A process that ran: what it said, and took. Seconds on the clock and of the processor, its peak memory."""

    stdout: str
    wall: float
    cpu: float
    rss_mb: float

    def seconds(self, waiting: float = 0.0) -> float:
        """What it takes where nobody else keeps the machine busy, of which it waits `waiting` seconds for others."""
        return min(self.wall, self.cpu + waiting)


# A process in between: what a child of pytest has at its peak would count pytest's own memory.
_MEASURE = """
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
wall, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
assert done.returncode == 0, done.stderr[-3000:]
found = {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "rss_mb": used.ru_maxrss / 1024}
print(json.dumps({"stdout": done.stdout, **found}))
"""


def measured(command: Sequence[str], env: Mapping[str, str] | None = None) -> Measured:
    """Run a command that has to succeed, from its start to its end."""
    return Measured(**json.loads(subprocess.check_output([sys.executable, "-c", _MEASURE, *command], env=env)))


def fastest(run: Callable[[], tuple[float, _Result]], limit: float) -> tuple[float, _Result]:
    """Seconds and result of the first of three runs that takes less than `limit` seconds, or of the fastest."""
    runs: list[tuple[float, _Result]] = []
    while not runs or (min(seconds for seconds, _ in runs) >= limit and len(runs) < 3):
        runs.append(run())
    return min(runs, key=lambda found: found[0])


def slack() -> float:
    """1, or more where others slow this machine down: all of its processors busy, or its host's."""
    return max(slower(), 1.0 if os.getloadavg()[0] <= (os.cpu_count() or 1) + 1 else 2.0)


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
