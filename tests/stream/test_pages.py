"""Huge pages: asked for where memory holds whole ones, and no more when they take longer than small ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ggufmap.stream import pages
from ggufmap.stream.pages import HugePages

SIZE = 2 << 20
COUNT = 40
on_request = pytest.mark.skipif(pages._size() != SIZE, reason="no huge pages of 2 MiB on request here")


@pytest.fixture
def memory() -> torch.Tensor:
    """Memory that is a mapping of its own, and holds `COUNT` huge pages."""
    return torch.empty((COUNT + 1) * SIZE, dtype=torch.uint8)


def parts_of(memory: torch.Tensor) -> list[torch.Tensor]:
    """The huge pages in it."""
    first = -memory.data_ptr() % SIZE
    return list(memory[first : first + COUNT * SIZE].split(SIZE))


def flags(part: torch.Tensor) -> set[str]:
    """What the kernel was told of the memory: `hg` and `nh` are the two advices."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key = line.split(maxsplit=1)[0]
        if not key.endswith(":"):
            start, stop = (int(edge, 16) for edge in key.split("-"))
            inside = start <= part.data_ptr() < stop
        elif inside and key == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError("the memory is not mapped")


def clock(took: Callable[[int], float]) -> Callable[[], float]:
    """A clock by which the n-th thing that is timed takes `took(n)` seconds."""
    now, looks = 0.0, 0

    def look() -> float:
        nonlocal now, looks
        now += took(looks // 2) if looks % 2 else 0.0
        looks += 1
        return now

    return look


def timed(small: float, *huge: float) -> Callable[[], float]:
    """Small pages take so long, of which an eighth is tried, then huge ones; the last of them for ever."""
    return clock(lambda n: small / 8 if n < 3 else huge[min(n - 3, len(huge) - 1)])


@on_request
def test_the_kernel_is_asked_and_gives_them(memory: torch.Tensor) -> None:
    found = HugePages([memory], timed(1.0, 0.1))
    parts = parts_of(memory)
    assert found.asked in (COUNT * SIZE, (COUNT + 1) * SIZE)
    for part in (parts[0], parts[-1]):
        assert flags(part) >= {"hg"} and "nh" not in flags(part)
        found.before(part)
    assert found.asked


@on_request
def test_they_are_given_up_when_they_take_longer(memory: torch.Tensor) -> None:
    found = HugePages([memory], timed(1.0, 0.1, 0.1, 1.1))
    parts = parts_of(memory)
    for part in parts[:4]:
        found.before(part)
    assert found.asked  # two of four say nothing yet
    found.before(parts[4])
    assert not found.asked
    assert "nh" in flags(parts[-1]) and "hg" not in flags(parts[-1])
    found.before(parts[5])  # nothing more is looked at


@on_request
def test_a_slow_one_now_and_then_is_no_reason(memory: torch.Tensor) -> None:
    found = HugePages([memory], timed(1.0, 9.0, 0.1, 9.0, 0.1, 0.1))
    for part in parts_of(memory):
        found.before(part)
    assert found.asked


@on_request
def test_they_are_looked_at_seldom_once_they_are_known(memory: torch.Tensor) -> None:
    looks: list[int] = []
    found = HugePages([memory], clock(lambda n: looks.append(n) or 0.1))  # type: ignore[func-returns-value]
    del looks[:]
    for part in parts_of(memory):
        found.before(part)
    assert len(looks) == 5 + (COUNT - 5) // 8 + 1


@on_request
def test_they_may_turn_slow_later(memory: torch.Tensor) -> None:
    found = HugePages([memory], timed(1.0, *[0.1] * 7, 5.0))
    for _ in range(3):
        for part in parts_of(memory):
            found.before(part)
    assert not found.asked


@on_request
def test_only_what_is_about_to_be_written_is_touched(memory: torch.Tensor) -> None:
    memory.fill_(7)
    found = HugePages([memory], timed(1.0, 0.1))
    shifted = memory[-memory.data_ptr() % SIZE + 100 :]
    for part in (
        shifted[: 2 * SIZE - 101],  # no whole page in it
        memory[: 8 * SIZE].view(2, -1)[:, : 3 * SIZE],  # not contiguous
        memory[:0],
        torch.empty(8 * SIZE, dtype=torch.uint8, device="meta"),
    ):
        found.before(part)
    assert bool((memory == 7).all())
    part = shifted[: 2 * SIZE]
    found.before(part)
    assert bool((memory != 7).sum() <= 1) and bool((shifted[2 * SIZE :] == 7).all()) and bool((shifted[:1] == 7).all())


@on_request
def test_neighbours_are_asked_for_together(memory: torch.Tensor) -> None:
    """Views of the same memory, and what has no whole page between two that have, add nothing by themselves."""
    views = [memory[: 2 * SIZE], memory[SIZE : SIZE + 10].view(2, 5), memory[2 * SIZE + 1000 :], memory]
    small = [torch.empty(1000), torch.empty((), device="meta")]
    (span,) = pages._spans([*views, *small], SIZE)
    assert len(span) in (COUNT * SIZE, (COUNT + 1) * SIZE)
    assert memory.data_ptr() <= span.start < memory.data_ptr() + SIZE


@on_request
def test_more_memory_shares_the_decision(memory: torch.Tensor) -> None:
    found = HugePages([memory], timed(1.0, 5.0))
    buffer, later = (torch.empty((COUNT + 1) * SIZE, dtype=torch.uint8) for _ in range(2))
    asked = found.asked
    found.also(buffer)
    assert found.asked >= asked + COUNT * SIZE and "hg" in flags(parts_of(buffer)[0])
    for part in parts_of(memory):
        found.before(part)
    assert not found.asked and "nh" in flags(parts_of(buffer)[0])
    found.also(later)
    assert not found.asked and not flags(parts_of(later)[0]) & {"hg", "nh"}


def test_tensors_that_hold_none_are_left_alone() -> None:
    found = HugePages([torch.empty(1000)], clock(lambda n: pytest.fail("there is nothing to be timed")))
    assert found.asked == 0
    found.before(torch.empty(8 * SIZE, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("enabled", "nbytes", "size"),
    [
        ("always [madvise] never", "2097152", SIZE),
        ("[always] madvise never", "2097152", SIZE),
        ("always madvise [never]", "2097152", 0),
        ("always [madvise] never", str(512 << 20), 0),  # arm64 with base pages of 64 KiB
        (None, None, 0),
        ("always [madvise] never", "many", 0),
    ],
)
def test_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str | None, nbytes: str | None, size: int
) -> None:
    monkeypatch.setattr(pages, "_FOLDER", tmp_path)
    if enabled is not None and nbytes is not None:
        (tmp_path / "enabled").write_text(enabled + "\n")
        (tmp_path / "hpage_pmd_size").write_text(nbytes + "\n")
    assert pages._size() == size
    if not size:
        assert HugePages([torch.empty(8 * SIZE, dtype=torch.uint8)]).asked == 0


@on_request
def test_threads_may_look_at_once(memory: torch.Tensor) -> None:
    """On the real clock: whatever comes out, it is said once, and nothing is lost of what was written."""
    found = HugePages([memory])
    parts = parts_of(memory)

    def fill(mine: list[torch.Tensor], value: int) -> None:
        for part in mine:
            found.before(part)
            part.fill_(value)

    threads = [threading.Thread(target=fill, args=(parts[i::4], i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(bool((part == i % 4).all()) for i, part in enumerate(parts))
    assert flags(parts[0]) & {"hg", "nh"} == ({"hg"} if found.asked else {"nh"})
