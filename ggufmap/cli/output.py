"""The one output sink: data on stdout, everything else on stderr, as loud and as colourful as was asked for.

`NO_COLOR` and `TERM=dumb` leave no escape sequence, `FORCE_COLOR` colours pipes too. How loud it is, is the level of
the logger `ggufmap`, to which the stages log: errors alone with `--quiet`, details of each stage with `--verbose`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from ggufmap.report.patterns import printable

_LOG = logging.getLogger("ggufmap")
_PIPE_WIDTH = 160


class _DataConsole(Console):
    def on_broken_pipe(self) -> None:
        """Go on (see `_reader_gone`); rich itself would exit with 1, which is the code of a bad mapping."""
        self.quiet = True
        _reader_gone()


class _Notes(logging.Handler):
    """What the stages log, as notes; a detail is what only `--verbose` shows."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(record.getMessage(), "dim")


def listen(*, quiet: bool = False, verbose: bool = False) -> None:
    """Set how loud this process is, and show what its stages log."""
    if not _columns():
        os.environ.pop("COLUMNS", None)  # rich takes 0 for a width
    _LOG.handlers = [_Notes()]
    _LOG.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)


def in_colour(stream: TextIO) -> bool:
    """Whether `stream` gets escape sequences."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def data_console() -> Console:
    """For results. In a pipe lines are wide unless COLUMNS says how wide: there is no window to cut them for."""
    width = None
    if not sys.stdout.isatty():
        width = _columns() or _PIPE_WIDTH
    return _DataConsole(width=width, **_colours(sys.stdout))


def print_json(value: Any) -> None:
    """A result for programs."""
    try:
        json.dump(value, sys.stdout, indent=1, ensure_ascii=True)
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_gone()


def print_text(text: str) -> None:
    """A result that is text already: XML, Markdown and the like."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_gone()


def note(message: str, style: str = "") -> None:
    """Something a person may want to know, on stderr; nothing with `--quiet`."""
    if _LOG.isEnabledFor(logging.INFO):
        _say(message, style)


def error(message: str, hint: str | None = None) -> None:
    """Why it ended, and what to do about it, on stderr, always."""
    _say(f"error: {message}", "bold red")
    if hint:
        _say(hint)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A callback that takes the bytes done since the last call, of `total`; nothing is shown with `--quiet`."""
    from ggufmap.serving.progress import load_progress

    if _LOG.isEnabledFor(logging.INFO):
        with load_progress(title, total) as advance:
            yield advance
    else:
        yield lambda _: None


def _say(message: str, style: str = "") -> None:
    """Write to stderr. Names in `message` may come from a file: only its lines are kept."""
    shown = "\n".join(map(printable, message.split("\n")))
    Console(stderr=True, soft_wrap=True, **_colours(sys.stderr)).print(Text(shown, style=style))


def _columns() -> int:
    """The width that COLUMNS gives, 0 where it is none."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() else 0


def _colours(stream: TextIO) -> dict[str, Any]:
    """`NO_COLOR` takes away colours alone in rich; bold and dim are escape sequences, too."""
    return {} if in_colour(stream) else {"color_system": None}


def _reader_gone() -> None:
    """`ggufmap map ... | head`: the rest is for nobody, and the exit code is still what the audit found."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
