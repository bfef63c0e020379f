"""The entry point: the application, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated

import typer

from ggufmap.cli.audit import audit
from ggufmap.cli.bench import bench
from ggufmap.cli.check import check
from ggufmap.cli.config import config
from ggufmap.cli.doctor import doctor
from ggufmap.cli.export import export
from ggufmap.cli.help import Group, add_command
from ggufmap.cli.map import map_
from ggufmap.cli.options import QUIET, VERBOSE
from ggufmap.cli.output import error, listen
from ggufmap.cli.patch import add_patch
from ggufmap.cli.serve import serve
from ggufmap.cli.usage import remedy
from ggufmap.errors import GgufmapError

_DEBUG = "GGUFMAP_DEBUG"
_CHECK, _SERVE, _MORE = "Check a model", "Serve it", "Convert and measure"

app = typer.Typer(
    name="ggufmap",
    cls=Group,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
add_command(app, audit, _CHECK)
add_command(app, check, _CHECK)
add_command(app, map_, _CHECK, "map")
add_command(app, doctor, _CHECK)
add_command(app, serve, _SERVE)
add_command(app, config, _MORE)
add_command(app, export, _MORE)
add_command(app, bench, _MORE)
add_patch(app, _MORE)

_EXAMPLES = """
ggufmap audit model.gguf                         # does it fit? Needs no GPU
ggufmap audit model.gguf --device sm_100 --tp 8  # on eight Blackwell GPUs?
ggufmap serve model.gguf -- --port 8001          # after --: for `vllm serve`
"""


def _version(wanted: bool) -> None:
    if wanted:
        from ggufmap.cli.versions import versions

        typer.echo("\n".join(versions()))
        raise typer.Exit


@app.callback(epilog=inspect.cleandoc(_EXAMPLES))
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
    quiet: QUIET = False,
    verbose: VERBOSE = False,
) -> None:
    """Run GGUF models in vLLM: prove the mapping, then stream the weights.

    First `audit` a file: it says where every tensor goes and what does not fit, before a byte of weight is copied. Then
    `serve` it: the audit again, and `vllm serve` with the draft, the tokenizer and the template that the file carries.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def main() -> None:
    """Run the command line; every GgufmapError becomes its message, its hint and its exit code."""
    listen()
    try:
        code = app(prog_name="ggufmap", standalone_mode=False)
    except GgufmapError as e:
        if os.environ.get(_DEBUG):
            raise
        error(e.message, e.hint)
        code = e.exit_code
    except typer.TyperException as e:  # what the parser refuses
        error(e.format_message().replace("Value error, ", ""), remedy(e))
        code = e.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()
