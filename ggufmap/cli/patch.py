"""`ggufmap patch`: small repairs of stock packages, verified before a byte is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggufmap.cli import options
from ggufmap.cli.help import Group, add_command
from ggufmap.cli.output import data_console, note, print_json
from ggufmap.errors import UsageError

if TYPE_CHECKING:
    from ggufmap.patching import Finding, Patch

_SCHEMA = 1
_STYLES = {"applies": "yellow", "applied": "green", "half applied": "bold red", "modified by others": "bold red"}
_NAMES = Annotated[
    list[str] | None, typer.Argument(metavar="PATCH", help="Names, or their numbers (default: all that can be).")
]
_PYTHON = Annotated[
    Path | None, typer.Option("--python", metavar="FILE", help="The environment of this Python instead of our own.")
]
_SITE = Annotated[
    Path | None, typer.Option("--site-packages", metavar="DIR", help="The packages in this folder instead of our own.")
]
_DRY_RUN = Annotated[bool, typer.Option("--dry-run", help="Verify everything, and write nothing.")]
_HELP = """Repair stock GGUF loaders: list, check, apply or revert small verified patches.

They are for people who stay on vllm-gguf-plugin or on vLLM's own loader; `ggufmap serve` needs none of them. Each file
is compared by SHA-256 before anything is written, the original is kept, and what others changed is refused.
"""
_EXAMPLES = """
ggufmap patch list                  # what is installed, and which patches are for it
ggufmap patch apply 0001 --dry-run  # would it fit?
ggufmap patch apply 0001
ggufmap patch revert 0001 --python /opt/vllm/bin/python
"""


def list_(python: _PYTHON = None, site_packages: _SITE = None, as_json: options.Json = False) -> None:
    """Say for each patch whether it is for what is installed, and whether it is applied."""
    _print(_inspect(python, site_packages), as_json)


def check(python: _PYTHON = None, site_packages: _SITE = None, as_json: options.Json = False) -> None:
    """Fail when a patch is for what is installed, but not applied; for scripts.

    Exit codes: 0 nothing to do, 1 a patch applies, is half applied or meets files that others changed, 2 bad input.
    """
    from ggufmap.patching import State

    findings = _inspect(python, site_packages)
    open_ = [f for f in findings if f.state in (State.APPLIES, State.HALF_APPLIED, State.MODIFIED)]
    _print(findings if as_json else open_, as_json)
    if open_:
        raise typer.Exit(1)
    note("ok: no patch is waiting")


def apply(names: _NAMES = None, python: _PYTHON = None, site_packages: _SITE = None, dry_run: _DRY_RUN = False) -> None:
    """Apply patches; without a name, all that apply. Those that are applied already stay as they are.

    Exit codes: 0 done, 2 the installed files are not those that a patch is for, 3 nothing to patch or no permission.
    """
    from ggufmap.patching import State, apply

    chosen = _chosen(names, _inspect(python, site_packages), (State.APPLIES, State.HALF_APPLIED))
    if _change(chosen, apply, ("would patch" if dry_run else "patched", "already applied"), dry_run):
        note("Restart what runs on these packages. `ggufmap patch revert` takes it back.")


def revert(
    names: _NAMES = None, python: _PYTHON = None, site_packages: _SITE = None, dry_run: _DRY_RUN = False
) -> None:
    """Put the original files back; without a name, those of all applied patches.

    Exit codes: 0 done, 2 the installed files are not those that a patch made, 3 nothing to revert or no permission.
    """
    from ggufmap.patching import State, revert

    chosen = _chosen(names, _inspect(python, site_packages), (State.APPLIED, State.HALF_APPLIED))
    _change(chosen, revert, ("would restore" if dry_run else "restored", "not applied"), dry_run)


def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def add_patch(app: typer.Typer, panel: str) -> None:
    """Make the group of the four commands a part of `app`, in the group `panel` of its help."""
    group = typer.Typer(cls=Group, invoke_without_command=True)
    group.callback(epilog=inspect.cleandoc(_EXAMPLES))(_root)
    for function, name in ((list_, "list"), (check, "check"), (apply, "apply"), (revert, "revert")):
        add_command(group, function, "Commands", name)
    app.add_typer(group, name="patch", help=_HELP, short_help=_HELP.partition("\n")[0], rich_help_panel=panel)


def _inspect(python: Path | None, site_packages: Path | None) -> list[Finding]:
    from ggufmap.patching import inspect, load_patches, search_path

    path = search_path(python, site_packages)
    return [inspect(patch, path) for patch in load_patches()]


def _chosen(names: list[str] | None, findings: list[Finding], states: tuple[str, ...]) -> list[Finding]:
    """Those named, by the whole name or its number, or those in one of `states`."""
    if not names:
        found = [finding for finding in findings if finding.state in states]
        if not found:
            note("nothing to do: `ggufmap patch list` says why")
        return found
    chosen = []
    for name in names:
        matching = [f for f in findings if f.patch.name in (name, f"{name.zfill(4)}{f.patch.name[4:]}")]
        if not matching:
            known = ", ".join(finding.patch.name for finding in findings)
            raise UsageError(f"no patch is called {name!r}", hint=f"Known: {known}.")
        chosen += matching
    return chosen


def _change(findings: list[Finding], change: Callable[..., list[Path]], words: tuple[str, str], dry_run: bool) -> bool:
    """Apply or revert, and say what was done; whether anything was written."""
    written = False
    for finding in findings:  # every patch is verified before the first one is written
        change(finding, dry_run=True)
    for finding in findings:
        paths = change(finding, dry_run=dry_run)
        for path in paths:
            typer.echo(f"{finding.patch.name}: {words[0]} {path}")
        if not paths:
            typer.echo(f"{finding.patch.name}: {words[1]}")
        written |= bool(paths) and not dry_run
    return written


def _print(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        print_json({"schema": _SCHEMA, "patches": [_as_json(finding) for finding in findings]})
    elif findings:
        _table(findings)


def _table(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("patch", "package", "installed", "state", box=None, header_style="dim")
    for finding in findings:
        state = Text(finding.state, style=_STYLES.get(finding.state, "dim"))
        if finding.reason:
            state.append(f": {finding.reason}")
        installed = finding.installed
        package = installed.package if installed else " or ".join(finding.patch.packages)
        table.add_row(finding.patch.name, package, installed.version if installed else "", state)
    data_console().print(table)


def _as_json(finding: Finding) -> dict[str, Any]:
    patch: Patch = finding.patch
    installed = finding.installed
    return {
        "name": patch.name,
        "packages": list(patch.packages),
        "versions": list(patch.versions),
        "fixes": patch.fixes,
        "link": patch.link,
        "remove_when": patch.remove_when,
        "installed": None
        if installed is None
        else {"package": installed.package, "version": installed.version, "folder": str(installed.folder)},
        "state": finding.state.value,
        "reason": finding.reason,
        "files": [{"path": file.diff.path, "state": file.state.value} for file in finding.files],
    }
