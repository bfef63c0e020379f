"""What `ggufmap check` has to say about a report: findings by kind, and whether each of them fails the check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ggufmap.report.lock import Difference
from ggufmap.report.patterns import pattern

_PHANTOM_MTP = "W107"


class Kind(StrEnum):
    """Kinds of finding; the last two always fail."""

    UNMAPPED = "unmapped"
    MISSING = "missing"
    MISMATCHED = "mismatched"
    PHANTOM_MTP = "phantom-mtp"
    WARNING = "warning"
    INFERRED = "inferred"
    LOCK = "lock"


DESCRIPTIONS = {
    Kind.UNMAPPED: "Every tensor of the file has a destination in vLLM.",
    Kind.MISSING: "Every vLLM parameter is filled by the file, every element once.",
    Kind.MISMATCHED: "Shapes, types and roles of tensors fit their destinations.",
    Kind.PHANTOM_MTP: "The draft (MTP) blocks that the header promises are in the file.",
    Kind.WARNING: "The audit has no warnings.",
    Kind.INFERRED: "The family has rows of its own; inferred rows prove no value.",
    Kind.LOCK: "The mapping is the one that the lock file pins.",
}
SELECTABLE = (Kind.UNMAPPED, Kind.MISSING, Kind.MISMATCHED, Kind.PHANTOM_MTP, Kind.WARNING)
DEFAULT = (Kind.UNMAPPED, Kind.MISSING, Kind.MISMATCHED)


@dataclass(frozen=True, slots=True)
class Finding:
    """Tensors or parameters of one name pattern with one reason."""

    kind: Kind
    names: tuple[str, ...]
    reason: str
    fails: bool

    @property
    def name(self) -> str:
        """The name, or the pattern that all of them have."""
        return self.names[0] if len(self.names) == 1 else pattern(self.names[0])

    @property
    def title(self) -> str:
        """The name with the count."""
        return self.name if len(self.names) == 1 else f"{len(self.names)} x {self.name}"

    def as_json(self) -> dict[str, Any]:
        """For the JSON report."""
        names = list(self.names)
        return {"kind": self.kind.value, "name": self.name, "names": names, "reason": self.reason, "fails": self.fails}


@dataclass(frozen=True, slots=True)
class LockCheck:
    """What became of the comparison with a lock file."""

    file: str
    vllm: str | None
    """The vLLM that the lock was made with; None when it was made without."""
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    updated: bool = False
    """Whether the file was written, so that differences are news and no fault."""


@dataclass(frozen=True, slots=True)
class Check:
    """A report (schema 1) with the verdict on it: what all CI formats are made of."""

    report: Mapping[str, Any]
    fail_on: tuple[Kind, ...]
    findings: tuple[Finding, ...]
    lock: LockCheck | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that fail this check."""
        return (*self.fail_on, Kind.INFERRED, *([] if self.lock is None else [Kind.LOCK]))

    @property
    def failed(self) -> dict[Kind, int]:
        """Kinds that made the check fail, with the number of names."""
        counts = {kind: sum(len(x.names) for x in self.findings if x.fails and x.kind is kind) for kind in Kind}
        return {kind: count for kind, count in counts.items() if count}

    @property
    def ok(self) -> bool:
        """Whether nothing fails the check."""
        return not self.failed

    @property
    def verdict(self) -> str:
        """One line for people."""
        if self.failed:
            return "check failed: " + ", ".join(f"{count} {kind}" for kind, count in self.failed.items())
        summary = self.report["summary"]
        proof = "by the rows alone"
        if summary["parameters"] is not None:
            proof = f"{summary['parameters_complete']} of {summary['parameters']} vLLM parameters filled"
        pinned = (
            "" if self.lock is None else f"; {'pinned in' if self.lock.updated else 'as pinned in'} {self.lock.file}"
        )
        return f"check passed: {summary['tensors']} tensors, {proof}{pinned}"

    def as_json(self) -> dict[str, Any]:
        """The report with a `check` object (docs/schema/report-1.json)."""
        lock = None
        if self.lock is not None:
            differences = [
                {"subject": x.subject, "change": x.change, "what": x.what, "old": x.old, "new": x.new}
                for x in self.lock.differences
            ]
            lock = {
                "file": self.lock.file,
                "vllm": self.lock.vllm,
                "updated": self.lock.updated,
                "notes": list(self.lock.notes),
                "differences": differences,
            }
        return {
            **self.report,
            "check": {
                "ok": self.ok,
                "fail_on": [kind.value for kind in self.kinds],
                "findings": [finding.as_json() for finding in self.findings],
                "lock": lock,
            },
        }


def make_check(report: Mapping[str, Any], fail_on: Sequence[Kind], lock: LockCheck | None = None) -> Check:
    """Judge `report`: what of it fails, grouped by kind, name pattern and reason, in a stable order."""
    groups: dict[tuple[Kind, str, str, bool], list[tuple[str, str]]] = {}
    for kind, name, reason, fails in _single(report, frozenset(fail_on), lock):
        groups.setdefault((kind, pattern(name), pattern(reason), fails), []).append((name, reason))
    findings = tuple(
        Finding(kind, tuple(name for name, _ in found), found[0][1] if len(found) == 1 else reason, fails)
        for (kind, _, reason, fails), found in groups.items()
    )
    return Check(report, tuple(fail_on), findings, lock)


def _single(
    report: Mapping[str, Any], fail_on: frozenset[Kind], lock: LockCheck | None
) -> Iterator[tuple[Kind, str, str, bool]]:
    """Kind, name, reason and whether it fails, one by one.

    A part of a draft that is expected, absent and not shared with the target is missing, and a phantom of MTP too.
    """
    for entry in report["unmapped"]:
        yield Kind.UNMAPPED, entry["tensor"], entry["reason"], Kind.UNMAPPED in fail_on
    for entry in report["missing"]:
        fails = Kind.MISSING in fail_on or (Kind.PHANTOM_MTP in fail_on and entry["role"] == "draft")
        yield Kind.MISSING, entry["parameter"], entry["reason"], fails
    for entry in report["mismatched"]:
        yield Kind.MISMATCHED, entry["tensor"], entry["reason"], Kind.MISMATCHED in fail_on
    for entry in report["warnings"]:
        kind = Kind.PHANTOM_MTP if entry["code"] == _PHANTOM_MTP else Kind.WARNING
        yield kind, entry["code"], entry["message"], kind in fail_on or Kind.WARNING in fail_on
    if report["inferred"] is not None:
        yield Kind.INFERRED, report["model"]["architecture"], f"no rows of its own: {report['inferred']['basis']}", True
    if lock is not None:
        yield from ((Kind.LOCK, x.subject, x.text, not lock.updated) for x in lock.differences)


def parse_fail_on(text: str) -> tuple[Kind, ...]:
    """The kinds in a comma-separated list, in the order of `SELECTABLE`. Raises ValueError with the unknown ones."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in {kind.value for kind in SELECTABLE}]
    if unknown:
        raise ValueError(", ".join(unknown))
    return tuple(kind for kind in SELECTABLE if kind in words)


def names_shown(names: Iterable[str], most: int) -> list[str]:
    """The first `most` names, and how many there are beyond."""
    names = list(names)
    return names if len(names) <= most else [*names[:most], f"... and {len(names) - most} more"]
