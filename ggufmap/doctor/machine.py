"""Memory of the machine and of the control groups around this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ggufmap.doctor.facts import Host

_SHM = "dev/shm"
_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 for no limit


def host(root: Path = Path("/")) -> Host:
    """What /proc, /sys/fs/cgroup and /dev/shm below `root` say."""
    memory = dict(_numbers(root / "proc/meminfo"))
    limit, free = min(_limits(root), default=(None, None), key=lambda pair: pair[1])
    shm = os.statvfs(root / _SHM) if (root / _SHM).is_dir() else None
    return Host(
        available=memory.get("MemAvailable", 0) * 1024,
        total=memory.get("MemTotal", 0) * 1024,
        limit=limit,
        limit_free=free,
        shm_total=0 if shm is None else shm.f_blocks * shm.f_frsize,
        shm_free=0 if shm is None else shm.f_bavail * shm.f_frsize,
    )


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, what is left of it) of each control group from this process's own up to the outermost, both versions.

    Cached file pages are not counted as taken where the kernel says how many it would give back first.
    """
    for folder, names in _groups(root):
        limit, used = (_number(folder / name) for name in names[:2])
        if limit is None or limit >= _UNLIMITED:
            continue
        cached = dict(_numbers(folder / "memory.stat")).get(names[2], 0)
        yield limit, max(0, limit - max(0, (used or 0) - cached))


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of this process's control groups, with the names of limit, use and reclaimable pages in each."""
    entries = _read(root / "proc/self/cgroup").splitlines()
    for entry in entries:
        _, _, rest = entry.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        yield from ((base.joinpath(*parts[:depth]), names) for depth in range(len(parts), -1, -1))


def _numbers(path: Path) -> Iterator[tuple[str, int]]:
    """`name number` or `name: number kB` per line."""
    for line in _read(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            yield words[0], int(words[1])


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
