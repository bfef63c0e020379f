"""A check as Markdown, for a comment or a job summary. What comes from a file stands in code spans: it does nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ggufmap.report.findings import Check, Finding, names_shown
from ggufmap.report.patterns import printable, size

_NAMES, _LONGEST = 20, 500
_ROOM = 50_000  # characters of findings; a comment on GitHub holds 65,536
_COUNTS = ("tensors", "mapped", "draft", "skipped", "unmapped", "missing", "mismatched", "phantom")
_TICKS = re.compile("`+")


def markdown(check: Check) -> str:
    """The text: verdict, counts, findings, as many as fit a comment."""
    model, target, summary = (check.report[key] for key in ("model", "target", "summary"))
    lines = [
        f"### {'✅' if check.ok else '❌'} ggufmap check: {code(model['name'])}",
        "",
        f"{code(model['architecture'])}, {size(model['bytes'])}, {_target(target)}",
        "",
        "| " + " | ".join(_COUNTS) + " |",
        "|" + " --: |" * len(_COUNTS),
        "| " + " | ".join(str(summary[key]) for key in _COUNTS) + " |",
        "",
    ]
    room = _ROOM
    for place, finding in enumerate(check.findings):
        shown = _finding(finding)
        room -= sum(map(len, shown))
        if room < 0:
            lines.append(f"- ... and {len(check.findings) - place} more (all of them with `--format json`)")
            break
        lines += shown
    if check.findings:
        lines.append("")
    if check.lock is not None:
        lines += [f"{code(note)}\n" for note in check.lock.notes]
    return "\n".join([*lines, code(check.verdict)]) + "\n"


def _target(target: dict[str, object]) -> str:
    if not target["traced"]:
        return "not traced: checked by the rows alone"
    return f"traced by vLLM {code(str(target['vllm']))} on {code(str(target['device']))}"


def _finding(finding: Finding) -> Sequence[str]:
    mark = "❌" if finding.fails else "⚠️"
    line = f"- {mark} **{finding.kind}** {code(finding.title)}: {code(finding.reason)}"
    if len(finding.names) == 1:
        return [line]
    shown = ", ".join(code(name) for name in names_shown(finding.names, _NAMES))
    return [line, f"  <details><summary>{len(finding.names)} names</summary>", "", f"  {shown}", "", "  </details>"]


def code(text: str) -> str:
    """`text` as one code span: its fence is longer than any run of backticks in it."""
    shown = printable(text)
    shown = shown if len(shown) <= _LONGEST else shown[:_LONGEST] + " ..."
    fence = "`" * (max((len(run) for run in _TICKS.findall(shown)), default=0) + 1)
    padding = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{fence}{padding}{shown}{padding}{fence}" if shown.strip() else f"` {shown} `"
