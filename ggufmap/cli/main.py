"""The entry point: the application, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ggufmap.cli.audit import audit
from ggufmap.cli.bench import bench
from ggufmap.cli.config import config
from ggufmap.cli.export import export
from ggufmap.cli.map import map_
from ggufmap.cli.output import note
from ggufmap.cli.serve import serve
from ggufmap.errors import GgufmapError

_DEBUG = "GGUFMAP_DEBUG"

app = typer.Typer(
    name="ggufmap",
    help="Run GGUF models in vLLM: prove the mapping, then stream the weights.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(audit)
app.command("map")(map_)
app.command()(config)
app.command()(serve)
app.command()(export)
app.command()(bench)


def _version(wanted: bool) -> None:
    if wanted:
        from ggufmap.cli.versions import versions

        typer.echo("\n".join(versions()))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; every GgufmapError becomes its message, its hint and its exit code."""
    try:
        app(prog_name="ggufmap")
    except GgufmapError as e:
        if os.environ.get(_DEBUG):
            raise
        note(f"error: {e.message}", "bold red")
        if e.hint:
            note(e.hint)
        sys.exit(e.exit_code)


if __name__ == "__main__":
    main()
