"""Memory limits of containers, as the kernel writes them down."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufmap.doctor.machine import host

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8 GiB, half of it free."""
    write(tmp_path / "proc/meminfo", f"MemTotal: {8192 * 1024} kB\nMemAvailable:  {4096 * 1024} kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_machine_without_limits(root: Path) -> None:
    found = host(root)
    assert (found.total, found.available, found.usable) == (8192 * MIB, 4096 * MIB, 4096 * MIB)
    assert (found.limit, found.limit_free, found.shm_total) == (None, None, 0)


def test_version_2_counts_the_tightest_group_and_not_the_page_cache(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/pod/container\n")
    group = root / "sys/fs/cgroup"
    write(group / "pod/container/memory.max", "max\n")
    write(group / "pod/memory.max", f"{1024 * MIB}\n")
    write(group / "pod/memory.current", f"{900 * MIB}\n")
    write(group / "pod/memory.stat", f"anon 5\ninactive_file {500 * MIB}\n")
    found = host(root)
    assert (found.limit, found.limit_free, found.usable) == (1024 * MIB, 624 * MIB, 624 * MIB)


def test_version_1_and_a_group_whose_use_is_above_the_limit(root: Path) -> None:
    write(root / "proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n")
    group = root / "sys/fs/cgroup/memory"
    write(group / "memory.limit_in_bytes", f"{2**63 - 4096}\n")
    write(group / "docker/abc/memory.limit_in_bytes", f"{256 * MIB}\n")
    write(group / "docker/abc/memory.usage_in_bytes", f"{300 * MIB}\n")
    found = host(root)
    assert (found.limit, found.limit_free, found.usable) == (256 * MIB, 0, 0)


def test_this_machine() -> None:
    found = host()
    assert 0 < found.usable <= found.available <= found.total
    assert 0 <= found.shm_free <= found.shm_total
