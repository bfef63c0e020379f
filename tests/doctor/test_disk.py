"""The read sample: how much of which files, past the page cache or with the pages dropped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ggufmap.doctor import disk

MIB = 1 << 20


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of random bytes, one of which is no whole number of sectors."""
    made = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path, size in zip(made, (40 * MIB, 9 * MIB + 123), strict=True):
        path.write_bytes(os.urandom(size))
    return made


@pytest.mark.parametrize("direct", [True, False])
def test_a_small_set_is_read_whole(files: list[Path], monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    if not direct:
        monkeypatch.setattr(disk, "_DIRECT", 0)
    found = disk.read_speed(files)
    assert found.sampled == found.total == 49 * MIB + 123
    assert found.rate == found.sampled / found.seconds > 0
    assert not found.holes
    assert direct or "dropped" in found.how


def test_a_large_set_is_sampled_evenly(files: list[Path]) -> None:
    found = disk.read_speed(files, sample=16 * MIB)
    assert 16 * MIB <= found.sampled < 32 * MIB
    assert found.total == 49 * MIB + 123
    pieces = list(disk._pieces([(files[0], 40 * MIB), (files[1], 9 * MIB)], 16 * MIB))
    assert {path for path, _, _ in pieces} == set(files)


def test_a_slow_disk_ends_the_measurement_in_time(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_SECONDS", 0.0)
    assert disk.read_speed(files).sampled == 0


def test_holes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    assert disk.read_speed([path]).holes


def test_an_empty_file_has_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    assert disk.read_speed([path]).rate == 0.0
