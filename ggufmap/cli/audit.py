"""`ggufmap audit`: prove the mapping before a byte is copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.asked import Asked, full_report, print_found
from ggufmap.cli.html import Html, TpSizes, check_html, parse_sizes, write_html
from ggufmap.cli.output import data_console, note, print_json
from ggufmap.errors import UsageError

if TYPE_CHECKING:
    from ggufmap.mapping.memory import RankMemory
    from ggufmap.serving.preflight import Preflight


_UNKNOWN = "A family without rows"
_ModelClass = Annotated[
    str | None,
    typer.Option("--model-class", metavar="NAME", help="The vLLM class that it may be.", rich_help_panel=_UNKNOWN),
]
_Rows = Annotated[
    Path | None,
    typer.Option("--rows", metavar="FILE", help="Write the inferred rows here.", rich_help_panel=_UNKNOWN),
]


def audit(
    model: options.Model,
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    offline: options.Offline = False,
    device: options.Device = "",
    tp: options.Tp = 1,
    ep: options.Ep = False,
    storage: options.Storage = options.Choice.AUTO,
    model_class: _ModelClass = None,
    rows: _Rows = None,
    stock: Annotated[
        bool,
        typer.Option("--stock", help="Also show what gguf-py's own name map would do.", rich_help_panel=options.OUTPUT),
    ] = False,
    html: Html = None,
    tp_sizes: TpSizes = None,
    as_json: options.Json = False,
) -> None:
    """Check that every tensor of MODEL has its place in vLLM, and every vLLM parameter its tensors.

    With vLLM installed, the real model class is built without memory and its own weight loading is traced.
    For a family without rows, rows are inferred from gguf-py's names; such a file is never ok.

    Exit codes: 0 clean, 1 the mapping has problems, 2 bad input or usage, 3 this environment cannot do it.

    Examples:
        ggufmap audit model.gguf                         # by the vLLM installed here
        ggufmap audit models/glm/ --offline              # by the rows alone: a second
        ggufmap audit model.gguf --device sm_100 --tp 8  # on eight Blackwell GPUs
        ggufmap audit hf://ORG/REPO:Q4_K_M               # before it is downloaded
        ggufmap audit model.gguf --json | jq .summary    # for programs
        ggufmap audit model.gguf --html report.html      # for a browser
    """
    asked = Asked(hf_config, draft, mmproj, offline, device, tp, ep, storage)
    sizes = parse_sizes(tp_sizes)
    if offline and sizes is not None:
        raise UsageError("--offline traces nothing", hint="Leave out --offline or --tp-sizes.")
    if html is not None:
        check_html(html)
    found = asked.look(model, stock=stock, model_class=model_class)
    with found.checkpoint:
        _check_known(found, model_class, rows)
        _say(found, asked, _ranks(found, asked, sizes, page=html is not None), html, as_json=as_json)
    if found.plan.inferred is not None:
        _give_rows(found.plan.inferred.rows, rows, shown=not as_json)
    if not found.plan.ok:
        raise typer.Exit(1)


def _ranks(found: Preflight, asked: Asked, sizes: tuple[int, ...] | None, *, page: bool) -> list[RankMemory]:
    """The memory of other numbers of ranks, where they are asked for or a page will show them."""
    if sizes is None and not page:
        return []
    from ggufmap.mapping.storage import Storage
    from ggufmap.serving.sizes import SIZES, rank_sizes
    from ggufmap.target.devices import World

    return rank_sizes(found, asked.world or World(), Storage(asked.storage), sizes or SIZES)


def _say(found: Preflight, asked: Asked, ranks: list[RankMemory], html: Path | None, *, as_json: bool) -> None:
    report = full_report(found, asked, ranks)
    if html is not None:
        write_html(html, report)
    if as_json:
        print_json(report)
    else:
        print_found(data_console(), found, asked)


def _check_known(found: Preflight, model_class: str | None, rows: Path | None) -> None:
    if found.plan.inferred is None and (model_class is not None or rows is not None):
        option = "--rows" if model_class is None else "--model-class"
        raise UsageError(
            f"{option} is for families without rows, and {found.checkpoint.architecture!r} has its own",
            hint="Leave it out.",
        )


def _give_rows(text: str, file: Path | None, *, shown: bool) -> None:
    """Print the inferred rows, or write them into a new file."""
    if file is None:
        if shown:
            typer.echo(f"\nrows to start from (docs/adding-an-architecture.md):\n\n{text}", nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except OSError as e:
        raise UsageError(f"{file}: cannot be written: {e.strerror}", hint="Name a new file with --rows.") from e
    note(f"inferred rows written to {file}")
