"""The one output sink: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

_PIPE_WIDTH = 160


def data_console() -> Console:
    """For results. In a pipe lines are wide, so that they are not cut for a window that is not there."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def print_json(value: Any) -> None:
    """A result for programs."""
    json.dump(value, sys.stdout, indent=1, ensure_ascii=True)
    sys.stdout.write("\n")


def note(message: str, style: str = "") -> None:
    """Something a person may want to know, on stderr."""
    Console(stderr=True, soft_wrap=True).print(Text(message, style=style))
