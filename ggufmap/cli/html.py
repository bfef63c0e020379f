"""`--html FILE`: the audit as one HTML page, beside what goes to stdout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ggufmap.cli import options
from ggufmap.cli.files import write_text
from ggufmap.cli.output import note
from ggufmap.errors import UsageError

_START = b"<!doctype html>"
_MOST_SIZES = 8

Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Also write the report as one page for a browser.",
        rich_help_panel=options.OUTPUT,
    ),
]
TpSizes = Annotated[
    str | None,
    typer.Option(
        "--tp-sizes",
        metavar="N,N...",
        help="Trace ranks of these sizes too, for the memory table (default with --html: 1,2,4,8,16).",
        rich_help_panel=options.ASKED,
    ),
]


def parse_sizes(text: str | None) -> tuple[int, ...] | None:
    """The sizes of `--tp-sizes`; None when it was not given. Raises UsageError for anything but a few numbers."""
    from ggufmap.target.devices import World

    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or len(words) > _MOST_SIZES or not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(
            f"--tp-sizes {text!r}: up to {_MOST_SIZES} numbers of ranks are expected", hint="As in 1,2,4,8."
        )
    return tuple(World(tensor_parallel=int(word)).tensor_parallel for word in words)


def check_html(file: Path) -> None:
    """Refuse, before anything is asked, what would fail in the end or overwrite a model.

    Raises UsageError when `file` exists and is no HTML page, or its folder does not exist.
    """
    hint = "Name a new file with --html."
    if not file.parent.is_dir():
        raise UsageError(f"{file}: the folder does not exist", hint=hint)
    if not file.exists():
        return
    if not file.is_file():
        raise UsageError(f"{file}: is not a file", hint=hint)
    try:
        with file.open("rb") as old:
            start = old.read(len(_START))
    except OSError as e:
        raise UsageError(f"{file}: cannot be read: {e.strerror}", hint=hint) from e
    if start and start.lower() != _START:
        raise UsageError(f"{file}: exists and is not an HTML page; it is not overwritten", hint=hint)


def write_html(file: Path, report: Mapping[str, Any]) -> None:
    """Write the page for `report` to `file`."""
    from ggufmap.report.html import html_page

    write_text(file, html_page(report))
    note(f"report written to {file}")
