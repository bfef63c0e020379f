"""`ggufmap doctor`: what this environment, this machine and this model are, and what stands in the way of serving."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.completion import complete_model
from ggufmap.cli.output import data_console, note, print_json

if TYPE_CHECKING:
    from ggufmap.doctor.finding import Finding

_SCHEMA = 1
_STYLES = {"ok": "green", "note": "", "warning": "yellow", "problem": "bold red"}
_Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Also check this model: as `ggufmap audit` takes it.",
        autocompletion=complete_model,
    ),
]


def doctor(
    model: _Model = None,
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    device: options.Device = "",
    tp: options.Tp = 1,
    ep: options.Ep = False,
    storage: options.Storage = options.Choice.AUTO,
    as_json: options.Json = False,
) -> None:
    """Check versions, plugin, GPU, and with a MODEL also attention backends, dtype, disk, memory and draft.

    vLLM is asked in processes of its own, so that one that does not import is a finding with a remedy.

    Exit codes: 0 nothing prevents serving, 1 something does, 2 bad input, 3 the environment lacks what is asked.

    Examples:
        ggufmap doctor                                     # this environment and machine
        ggufmap doctor model.gguf --tp 8                   # and what this model needs of them
        ggufmap doctor model.gguf --device sm_100 --tp 8   # as if such GPUs were here
    """
    from ggufmap.doctor.checks import diagnose
    from ggufmap.doctor.finding import exit_code
    from ggufmap.doctor.gather import gather
    from ggufmap.mapping.storage import Storage
    from ggufmap.target.devices import World

    note("Asking torch and vLLM (ten seconds or more) ...", "dim")
    world = World(device, tp, ep)
    findings = diagnose(
        gather(model, world=world, hf_config=hf_config, draft=draft, mmproj=mmproj, storage=Storage(storage))
    )
    code = exit_code(findings)
    if as_json:
        print_json(
            {"schema": _SCHEMA, "ok": code == 0, "exit_code": code, "findings": [asdict(each) for each in findings]}
        )
    else:
        _show(findings)
    if code:
        raise typer.Exit(code)


def _show(findings: list[Finding]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ggufmap.report.patterns import printable

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.check, Text(printable(finding.found)))
        if finding.remedy:
            table.add_row("", "", Text(f"-> {finding.remedy}", style="bold"))
    console = data_console()
    console.print(table)
    problems = sum(finding.level == "problem" for finding in findings)
    if problems:
        console.print(Text(f"{problems} of {len(findings)} findings prevent serving", style="bold red"))
    else:
        console.print(Text("nothing found that prevents serving", style="bold green"))
