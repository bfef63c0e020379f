"""Help texts: options in groups, examples last, commands in the order in which they are used.

Plain text of the library's own formatter: the boxes of its `rich` mode leave half of 80 columns for the help, and cost
a fifth of a second.
"""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ggufmap.cli.options import QUIET, VERBOSE
from ggufmap.cli.output import in_colour

_WIDEST, _NARROW = 100, 60
_EXAMPLES = "\n\nExamples:\n"
_GENERAL = "General"


class _Sections:
    """What commands and the application share: sections by `rich_help_panel`, as wide as the terminal."""

    epilog: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help into `formatter`."""
        formatter.width = max(min(shutil.get_terminal_size().columns, _WIDEST), 30) - 1
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line; what must be given stands there as it is."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]  # type: ignore[misc]

    def sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Arguments and options with their help, by group, `--help` and its like last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            record = param.get_help_record(ctx)
            if record is not None:
                is_argument = param.param_type_name == "argument"
                name = record[0].split(" <")[0] if is_argument else record[0]
                own = getattr(param, "rich_help_panel", None)
                title = own or ("Arguments" if is_argument else _GENERAL if _is_general(param) else "Options")
                sections.setdefault(title, []).append((name, record[1]))
        return dict(sorted(sections.items(), key=lambda section: section[0] == _GENERAL))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, one section per group."""
        for title, rows in self.sections(ctx).items():
            _write(formatter, title, rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, line by line as they are."""
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(_heading("Examples"))
            formatter.write(_examples(self.epilog.splitlines(), formatter.width))


class Command(_Sections, TyperCommand):
    """A command with grouped options and examples."""


class Group(_Sections, TyperGroup):
    """The application: its commands in groups, with the whole of their first sentence."""

    def command_sections(self) -> dict[str, list[tuple[str, str]]]:
        """The commands with their first sentences, by group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                sections.setdefault(panel, []).append((name, command.short_help or ""))
        return sections

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        for title, rows in self.command_sections().items():
            _write(formatter, title, rows)
        super().format_options(ctx, formatter)


def add_command(app: typer.Typer, function: Callable[..., None], panel: str, name: str | None = None) -> None:
    """Make `function` a command of `app`, in the group `panel` of its help.

    The docstring is the help: its first sentence stands in the list of commands, what follows `Examples:` comes last.
    `--quiet` and `--verbose` are added to its options.
    """
    text, _, examples = inspect.cleandoc(function.__doc__ or "").partition(_EXAMPLES)
    app.command(
        name,
        cls=Command,
        help=text,
        short_help=" ".join(text.split("\n\n")[0].split()),
        epilog=inspect.cleandoc(examples),
        rich_help_panel=panel,
    )(_with_verbosity(function))


def _with_verbosity(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with the two options more in its signature; their callbacks do the work."""

    def command(*, quiet: bool, verbose: bool, **arguments: Any) -> None:
        function(**arguments)

    signature = inspect.signature(function, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("quiet", QUIET), ("verbose", VERBOSE))
    ]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *more]
    )
    command.__name__ = function.__name__
    return command


def _is_general(param: Any) -> bool:
    return param.name in ("help", "quiet", "verbose", "version", "install_completion", "show_completion")


def _examples(lines: list[str], width: int) -> str:
    """Each on its line; where a remark does not fit behind its command, all stand above."""
    parts = [line.partition(" # ") for line in lines]
    if any(remark and len(line) + 2 > width for line, (_, _, remark) in zip(lines, parts, strict=True)):
        lines = [text for command, _, remark in parts for text in (remark and f"# {remark}", command.rstrip()) if text]
    return "".join(f"  {line}\n" for line in lines)


def _heading(title: str) -> str:
    return f"{typer.style(title, bold=True)}:\n" if in_colour(sys.stdout) else f"{title}:\n"


def _write(formatter: Any, title: str, rows: Iterable[tuple[str, str]]) -> None:
    formatter.write_paragraph()
    formatter.write(_heading(title))
    formatter.indent()
    formatter.write_dl(rows, col_max=30 if formatter.width >= _NARROW else 8)
    formatter.dedent()
