"""A check as JUnit XML, as Jenkins' xunit plugin reads it: a suite per kind, a test case per finding."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ggufmap.report.findings import DESCRIPTIONS, SELECTABLE, Check, Finding, Kind, names_shown
from ggufmap.report.patterns import printable

_NAMES = 1000


def junit(check: Check) -> str:
    """The XML text. Names are shown with what XML 1.0 cannot hold (control characters, surrogates) escaped."""
    root = ET.Element("testsuites", name=printable(f"ggufmap check {check.report['model']['name']}"))
    kinds = [*SELECTABLE, *(kind for kind in check.kinds if kind not in SELECTABLE)]
    for kind in kinds:
        _suite(root, check, kind)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, check: Check, kind: Kind) -> None:
    found = [finding for finding in check.findings if finding.kind is kind]
    failures = sum(finding.fails for finding in found)
    counts = {"tests": max(len(found), 1), "failures": failures, "errors": 0, "skipped": len(found) - failures}
    suite = ET.SubElement(root, "testsuite", {"name": kind.value, **{key: str(n) for key, n in counts.items()}})
    if not found:
        ET.SubElement(suite, "testcase", name=DESCRIPTIONS[kind], classname=f"ggufmap.{kind.value}")
    for finding in found:
        _case(suite, finding)


def _case(suite: ET.Element, finding: Finding) -> None:
    """Failed when the finding fails the check; skipped when `--fail-on` does not name its kind."""
    name = printable(finding.name)
    case = ET.SubElement(suite, "testcase", name=name, classname=f"ggufmap.{finding.kind.value}")
    message = printable(f"{finding.title}: {finding.reason}")
    if finding.fails:
        outcome = ET.SubElement(case, "failure", message=message, type=finding.kind.value)
    else:
        outcome = ET.SubElement(case, "skipped", message=f"not in --fail-on: {message}")
    outcome.text = "\n".join([printable(finding.reason), *map(printable, names_shown(finding.names, _NAMES))])
