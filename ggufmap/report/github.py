"""A check as workflow commands of GitHub Actions: an annotation per finding, the verdict as a notice."""

from __future__ import annotations

from ggufmap.report.findings import Check, Finding, Kind
from ggufmap.report.patterns import printable

_LONGEST = 2000


def github(check: Check) -> str:
    """The lines for the job's log."""
    lines = [_annotation(check, finding) for finding in check.findings]
    if check.lock is not None:
        lines += [_command("notice", {"title": "ggufmap check"}, note) for note in check.lock.notes]
    level = "notice" if check.ok else "error"
    return "\n".join([*lines, _command(level, {"title": "ggufmap check"}, check.verdict)]) + "\n"


def _annotation(check: Check, finding: Finding) -> str:
    properties = {"title": f"ggufmap: {finding.kind}"}
    if finding.kind is Kind.LOCK and check.lock is not None:
        properties["file"] = check.lock.file
    return _command("error" if finding.fails else "warning", properties, f"{finding.title}: {finding.reason}")


def _command(level: str, properties: dict[str, str], message: str) -> str:
    shown = printable(message)
    shown = shown if len(shown) <= _LONGEST else shown[:_LONGEST] + " ..."
    values = ",".join(f"{key}={_property(printable(value))}" for key, value in properties.items())
    return f"::{level} {values}::{_data(shown)}"


def _data(text: str) -> str:
    """Escaped as the runner reads it back (actions/toolkit, command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
