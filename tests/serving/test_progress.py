"""Progress: a bar for a person, a line now and then for a log."""

from __future__ import annotations

import pytest

from ggufmap.serving import progress
from ggufmap.serving.progress import load_progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def test_a_log_gets_a_line_every_few_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with load_progress("a model", 10 * 10**9) as advance:
        for _ in range(10):
            clock.now += 2
            advance(10**9)
    assert capsys.readouterr().err.splitlines() == [
        "a model: 3.00 of 10.00 GB, 0.50 GB/s, 14 s left",
        "a model: 6.00 of 10.00 GB, 0.50 GB/s, 8 s left",
        "a model: 9.00 of 10.00 GB, 0.50 GB/s, 2 s left",
    ]


def test_a_short_load_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with load_progress("a model", 100) as advance:
        clock.now += 1
        advance(100)
    assert capsys.readouterr().err == ""


def test_the_rank_is_named_when_there_are_several(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with load_progress("a model", 100, rank=3, ranks=8) as advance:
        clock.now += 6
        advance(50)
    assert capsys.readouterr().err.startswith("a model, rank 3 of 8: ")


@pytest.mark.parametrize(
    ("rank", "ranks", "shown"), [(0, 1, "a model[45m"), (0, 2, "a model[45m, rank 0 of 2"), (1, 2, "")]
)
def test_a_terminal_gets_one_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int, ranks: int, shown: str
) -> None:
    """With bytes, speed and the time that is left; what is in a file's name cannot style it."""
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    with load_progress("a model\x1b[45m", 100, rank, ranks) as advance:
        advance(50)
        advance(50)
    error = capsys.readouterr().err
    assert ("100/100 bytes" in error) == bool(shown)
    assert shown in error and "\x1b[45m" not in error
