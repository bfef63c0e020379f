"""The end of a check for people: what differs from the lock, and the verdict. The audit above it shows the rest."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ggufmap.report.findings import Check, Kind
from ggufmap.report.patterns import printable

_SHOWN = 40


def print_check(console: Console, check: Check) -> None:
    """Print the lock's differences and the verdict of `check`."""
    console.print()
    if check.lock is not None:
        _print_lock(console, check)
    kinds = [*check.fail_on, *([] if check.lock is None else ["a difference from the lock"])]
    console.print(Text(f"fails on: {', '.join(kinds) or 'nothing'}"))
    console.print(Text(printable(check.verdict), style="bold green" if check.ok else "bold red"))


def _print_lock(console: Console, check: Check) -> None:
    assert check.lock is not None
    found = [finding for finding in check.findings if finding.kind is Kind.LOCK]
    style = "" if check.lock.updated else "red"
    for finding in found[:_SHOWN]:
        console.print(Text(printable(f"  lock      {finding.title}  {finding.reason}"), style=style), soft_wrap=True)
    if len(found) > _SHOWN:
        console.print(
            Text(f"  lock      ... and {len(found) - _SHOWN} more (all of them with --format json)", style=style)
        )
    for note in check.lock.notes:
        console.print(Text(printable(f"  lock      {note}"), style="yellow"))
