"""`ggufmap check`: the audit as a dry run for CI, with a lock file and the formats that CI systems read."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggufmap.cli import options
from ggufmap.cli.asked import Asked, full_report, print_found
from ggufmap.cli.files import read_text, write_text
from ggufmap.cli.output import data_console, note, print_text
from ggufmap.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from ggufmap.report.findings import Check, Kind, LockCheck
    from ggufmap.report.lock import Lock
    from ggufmap.serving.preflight import Preflight

_LOCK_BYTES = 64 << 20
_FILE_WIDTH = 160
_PINNED = "Pinned mapping"


class Format(StrEnum):
    """How the result is written."""

    CONSOLE = "console"
    JSON = "json"
    JUNIT = "junit"
    SARIF = "sarif"
    MARKDOWN = "markdown"
    GITHUB = "github"


_Lock = Annotated[
    Path | None,
    typer.Option(
        "--lock", metavar="FILE", help="Compare with this lock file (ggufmap.lock.json).", rich_help_panel=_PINNED
    ),
]
_Update = Annotated[bool, typer.Option("--update", help="Write the lock file anew.", rich_help_panel=_PINNED)]
_FailOn = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="KINDS",
        help="What fails, comma-separated: unmapped, missing, mismatched, phantom-mtp, warning.",
    ),
]
_Format = Annotated[Format, typer.Option("--format", help="How the result is written.", rich_help_panel=options.OUTPUT)]
_Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write it here, not on stdout.", rich_help_panel=options.OUTPUT
    ),
]


def check(
    model: options.Model,
    lock: _Lock = None,
    update: _Update = False,
    fail_on: _FailOn = "unmapped,missing,mismatched",
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    offline: options.Offline = False,
    device: options.Device = "",
    tp: options.Tp = 1,
    ep: options.Ep = False,
    storage: options.Storage = options.Choice.AUTO,
    format: _Format = Format.CONSOLE,
    output: _Output = None,
) -> None:
    """Audit MODEL for CI: what fails is chosen, and a lock file pins where every tensor goes.

    A difference from the lock always fails, and shows what moved. docs/ci.md has a workflow and all formats.

    Exit codes: 0 passed, 1 failed, 2 bad input or usage, 3 this environment cannot do it.

    Examples:
        ggufmap check model.gguf --lock ggufmap.lock.json --update  # pin the mapping
        ggufmap check model.gguf --lock ggufmap.lock.json           # is it still so?
        ggufmap check model.gguf --fail-on missing,phantom-mtp      # MTP must be there
        ggufmap check model.gguf --format junit -o report.xml       # for Jenkins, GitLab
    """
    from ggufmap.report.findings import make_check

    kinds = _kinds(fail_on)
    asked = Asked(hf_config, draft, mmproj, offline, device, tp, ep, storage)
    old = _old_lock(lock, update, offline)
    found = asked.look(model)
    with found.checkpoint:
        report = full_report(found, asked)
        if lock is None:
            checked = make_check(report, kinds)
        elif update:
            checked = _updated(found, report, kinds, lock, old)
        else:
            assert old is not None
            checked = make_check(report, kinds, _compared(found, lock, old, offline=offline))
        _write(checked, lambda console: print_found(console, found, asked), format, output)
    if not checked.ok:
        raise typer.Exit(1)


def _kinds(fail_on: str) -> tuple[Kind, ...]:
    from ggufmap.report.findings import SELECTABLE, parse_fail_on

    try:
        return parse_fail_on(fail_on)
    except ValueError as e:
        raise UsageError(f"--fail-on: unknown: {e}", hint=f"Known are {', '.join(SELECTABLE)}.") from e


def _old_lock(lock: Path | None, update: bool, offline: bool) -> Lock | None:
    """The lock file as it is, before anything slow; None where it is to be made."""
    from ggufmap.report.lock import read_lock, traced

    if lock is None:
        if update:
            raise UsageError("--update writes a lock file, and none is named", hint="Name it with --lock FILE.")
        return None
    if not lock.exists():
        if update:
            return None
        raise UsageError(f"{lock}: no such lock file", hint="Make it with --update, and commit it.")
    old = read_lock(read_text(lock, _LOCK_BYTES), str(lock))
    if update and offline and traced(old):
        raise UsageError(
            f"{lock}: pins the parameters of vLLM {old['target']['vllm']}, which --offline would drop",
            hint="Leave out --offline, or delete the lock file first.",
        )
    return old


def _compared(found: Preflight, file: Path, old: Lock, *, offline: bool) -> LockCheck:
    """Compare with the lock. Raises MissingDependencyError when it pins parameters and there is no vLLM to ask."""
    from ggufmap.report.findings import LockCheck
    from ggufmap.report.lock import compare, make_lock, traced

    new = make_lock(found.plan)
    then, now = old["target"].get("vllm"), new["target"]["vllm"]
    notes = []
    if traced(old) and not traced(new):
        if not offline:
            raise MissingDependencyError(
                f"{file}: pins the parameters of vLLM {then}, and vLLM is not installed here",
                hint="Install it, or compare the names alone with --offline.",
            )
        notes.append(f"made with vLLM {then}; parameters are not compared with --offline")
    elif traced(new) and not traced(old):
        notes.append(f"made without vLLM; parameters are not compared (--update pins those of vLLM {now})")
    elif then != now:
        notes.append(f"made with vLLM {then}, this is vLLM {now}")
    return LockCheck(str(file), then, tuple(compare(old, new)), tuple(notes))


def _updated(found: Preflight, report: dict[str, Any], kinds: tuple[Kind, ...], file: Path, old: Lock | None) -> Check:
    """Write the lock file, unless the check fails by itself: a mapping with problems is never pinned."""
    from ggufmap.report.findings import LockCheck, make_check
    from ggufmap.report.lock import compare, dump_lock, make_lock

    new = make_lock(found.plan)
    differences = () if old is None else tuple(compare(old, new))
    checked = make_check(report, kinds, LockCheck(str(file), new["target"]["vllm"], differences, updated=True))
    if checked.ok:
        write_text(file, dump_lock(new))
    else:
        note(f"{file}: not written: the check fails", "yellow")
        checked = make_check(report, kinds)
    return checked


def _write(checked: Check, audit: Callable[[Console], None], format: Format, output: Path | None) -> None:
    """Write the result; `audit` prints what the check is about, for people."""
    if format is Format.CONSOLE and output is None:
        _print(data_console(), audit, checked)
        return
    text = _text(checked, audit, format)
    if output is None:
        print_text(text)
    else:
        write_text(output, text)
    if format is Format.GITHUB:
        _summarise(checked)


def _text(checked: Check, audit: Callable[[Console], None], format: Format) -> str:
    import json

    from ggufmap.report.github import github
    from ggufmap.report.junit import junit
    from ggufmap.report.markdown import markdown
    from ggufmap.report.sarif import sarif

    if format is Format.JUNIT:
        return junit(checked)
    if format is Format.MARKDOWN:
        return markdown(checked)
    if format is Format.GITHUB:
        return github(checked)
    if format is Format.CONSOLE:
        return _plain(checked, audit)
    value = checked.as_json() if format is Format.JSON else sarif(checked, exit_code=0 if checked.ok else 1)
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


def _plain(checked: Check, audit: Callable[[Console], None]) -> str:
    """What the terminal shows, for a file."""
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=_FILE_WIDTH, color_system=None)
    with console.capture() as shown:
        _print(console, audit, checked)
    return shown.get()


def _print(console: Console, audit: Callable[[Console], None], checked: Check) -> None:
    from ggufmap.report.verdict import print_check

    audit(console)
    print_check(console, checked)


def _summarise(checked: Check) -> None:
    """Add to the page of the job, when a GitHub runner says where it is."""
    from ggufmap.report.markdown import markdown

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(markdown(checked))
    except OSError as e:
        note(f"GITHUB_STEP_SUMMARY: {path} cannot be written: {e.strerror}", "yellow")
