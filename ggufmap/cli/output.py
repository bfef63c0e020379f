"""The one output sink: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ggufmap.report.patterns import printable

_PIPE_WIDTH = 160


class _DataConsole(Console):
    def on_broken_pipe(self) -> None:
        """Go on (see `_reader_gone`); rich itself would exit with 1, which is the code of a bad mapping."""
        self.quiet = True
        _reader_gone()


def data_console() -> Console:
    """For results. In a pipe lines are wide, so that they are not cut for a window that is not there."""
    return _DataConsole() if sys.stdout.isatty() else _DataConsole(width=_PIPE_WIDTH)


def print_json(value: Any) -> None:
    """A result for programs."""
    try:
        json.dump(value, sys.stdout, indent=1, ensure_ascii=True)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_gone()


def _reader_gone() -> None:
    """`ggufmap map ... | head`: the rest is for nobody, and the exit code is still what the audit found."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(message: str, style: str = "") -> None:
    """Something a person may want to know, on stderr. Names in it may come from a file: only its lines are kept."""
    shown = "\n".join(map(printable, message.split("\n")))
    Console(stderr=True, soft_wrap=True).print(Text(shown, style=style))
