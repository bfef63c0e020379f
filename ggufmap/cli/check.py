"""`ggufmap check`: the audit as a dry run for CI, with a lock file and the formats that CI systems read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggufmap.cli import options
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
    from ggufmap.mapping.storage import Storage
    from ggufmap.remote.reference import shown
    from ggufmap.report.findings import make_check
    from ggufmap.serving.preflight import preflight
    from ggufmap.target.devices import World

    kinds = _kinds(fail_on)
    old = _old_lock(lock, update, offline)
    world = World(device, tp, ep) if device or tp > 1 or ep else None
    if offline and world is not None:
        raise UsageError("--offline traces nothing", hint="Leave out --offline, or --device, --tp and --ep.")
    found = preflight(
        model,
        hf_config=hf_config,
        draft=draft,
        mmproj=mmproj,
        offline=offline,
        world=world,
        storage=Storage(storage),
        infer_unknown=True,
    )
    with found.checkpoint:
        given: dict[str, object] = {"--hf-config": hf_config, "--draft": shown(draft), "--mmproj": shown(mmproj)}
        if storage is not options.Choice.AUTO:
            given["--storage"] = storage.value
        report = _report(found, given)
        if lock is None:
            checked = make_check(report, kinds)
        elif update:
            checked = _updated(found, report, kinds, lock, old)
        else:
            assert old is not None
            checked = make_check(report, kinds, _compared(found, lock, old, offline=offline))
        _write(found, checked, format, output)
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


def _report(found: Preflight, given: Mapping[str, object]) -> dict[str, Any]:
    from ggufmap.report.as_json import plan_report

    return plan_report(
        found.plan,
        config_source=found.config.source,
        assumed=found.config.assumed,
        templates=_templates(found),
        header=found.checkpoint.metadata.listed(),
        serve_options=[word for option, value in given.items() if value is not None for word in (option, str(value))],
    )


def _templates(found: Preflight) -> list[dict[str, Any]]:
    from ggufmap.modeldir.template import read_templates

    return [template.report() for template in read_templates(found.checkpoint.metadata)]


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


def _write(found: Preflight, checked: Check, format: Format, output: Path | None) -> None:
    if format is Format.CONSOLE and output is None:
        _print(data_console(), found, checked)
        return
    text = _text(found, checked, format)
    if output is None:
        print_text(text)
    else:
        write_text(output, text)
    if format is Format.GITHUB:
        _summarise(checked)


def _text(found: Preflight, checked: Check, format: Format) -> str:
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
        return _plain(found, checked)
    value = checked.as_json() if format is Format.JSON else sarif(checked, exit_code=0 if checked.ok else 1)
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


def _plain(found: Preflight, checked: Check) -> str:
    """What the terminal shows, for a file."""
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=_FILE_WIDTH, color_system=None)
    with console.capture() as shown:
        _print(console, found, checked)
    return shown.get()


def _print(console: Console, found: Preflight, checked: Check) -> None:
    from ggufmap.report.console import print_plan
    from ggufmap.report.verdict import print_check

    source, assumed = found.config.source, found.config.assumed
    print_plan(console, found.plan, config_source=source, assumed=assumed, templates=_templates(found))
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
