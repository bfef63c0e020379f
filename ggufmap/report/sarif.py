"""A check as SARIF 2.1.0: a rule per kind, a result per finding, located in the model (or the lock) by tensor name."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from ggufmap import __version__
from ggufmap.report.findings import DESCRIPTIONS, Check, Finding, Kind, names_shown
from ggufmap.report.patterns import printable

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_NAMES = 100
_RULES = tuple(Kind)


def sarif(check: Check, exit_code: int) -> dict[str, Any]:
    """The log, ready for json.dumps; `exit_code` is that of the command."""
    driver = {"name": "ggufmap", "version": __version__, "rules": [_rule(kind) for kind in _RULES]}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "exitCode": exit_code}],
        "results": [_result(check, finding) for finding in check.findings],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: Kind) -> dict[str, Any]:
    words = kind.value.split("-")
    return {
        "id": kind.value,
        "name": "".join(word.capitalize() for word in words),
        "shortDescription": {"text": DESCRIPTIONS[kind]},
        "help": {"text": f"{DESCRIPTIONS[kind]} See docs/audit.md and docs/ci.md of ggufmap."},
    }


def _result(check: Check, finding: Finding) -> dict[str, Any]:
    path = check.report["model"]["path"]
    if finding.kind is Kind.LOCK and check.lock is not None:
        path = check.lock.file
    names = [printable(name) for name in names_shown(finding.names, _NAMES)]
    kind = "parameter" if finding.kind is Kind.MISSING else "resource"
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": _RULES.index(finding.kind),
        "level": _level(finding),
        "message": {"text": printable(f"{finding.title}: {finding.reason}")},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": _uri(path)}},
                "logicalLocations": [{"fullyQualifiedName": name, "kind": kind} for name in names],
            }
        ],
        "partialFingerprints": {"ggufmap/v1": _fingerprint(finding)},
    }


def _level(finding: Finding) -> str:
    if finding.fails:
        return "error"
    return "warning" if finding.kind in (Kind.WARNING, Kind.PHANTOM_MTP) else "note"


def _uri(path: str) -> str:
    """A relative path as a URI reference, an absolute one as a file URI, a remote reference as the URI that it is."""
    text = quote(path.encode("utf-8", "surrogateescape"), safe="/:" if "://" in path else "/")
    return f"file://{text}" if PurePosixPath(path).is_absolute() else text


def _fingerprint(finding: Finding) -> str:
    """The same for the same finding in the next run, so that a viewer can tell old from new."""
    text = "\0".join([finding.kind.value, finding.name])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
