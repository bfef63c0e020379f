"""What a check says: a level, what it looked at, what it found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is: fine, worth knowing, may go wrong, prevents serving."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. A `lacking` problem is the environment's: it has not what was asked for."""

    check: str
    level: Level
    found: str
    remedy: str = ""
    lacking: bool = False


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def note(check: str, found: str, remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check, Level.NOTE, found, remedy)


def warning(check: str, found: str, remedy: str) -> Finding:
    """May go wrong."""
    return Finding(check, Level.WARNING, found, remedy)


def problem(check: str, found: str, remedy: str, *, lacking: bool = False) -> Finding:
    """Prevents serving."""
    return Finding(check, Level.PROBLEM, found, remedy, lacking)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing prevents serving, 1: something does, 3: the environment lacks what was asked for."""
    problems = [finding for finding in findings if finding.level is Level.PROBLEM]
    return 3 if any(finding.lacking for finding in problems) else int(bool(problems))
