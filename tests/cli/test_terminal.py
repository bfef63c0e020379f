"""What a terminal gets: colours only where wanted, lines that fit, nothing but text from a file; how loud it is."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.cells import cell_len
from support import gguf_bytes as gb
from support import small_models as small

from .conftest import Cli, Result

SCRIPT = Path(sys.executable).with_name("ggufmap")
COLOURS = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "GITHUB_ACTIONS", "PY_COLORS")
LONG = "blk.0." + "very_long_name_" * 12 + "end.weight"
WIDE = "模型測試🚀ｶﾅ"


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key not in COLOURS}
    return {**clean, "TERM": "xterm-256color", **settings}


def in_terminal(folder: Path, *arguments: str, columns: int = 80, **settings: str) -> str:
    """What the command writes to a terminal of so many columns, both streams together."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(
        [SCRIPT, *arguments], cwd=folder, env=environment(settings), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    said = b""
    try:
        while chunk := os.read(controller, 65536):
            said += chunk
    except OSError as e:
        assert e.errno == errno.EIO  # Linux's end of file
    os.close(controller)
    process.wait(timeout=60)
    return said.decode().replace("\r\n", "\n")


def in_pipe(folder: Path, *arguments: str, **settings: str) -> str:
    done = subprocess.run(
        [SCRIPT, *arguments], cwd=folder, env=environment(settings), capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good model and a bad one, with a name in wide characters and a tensor with a name that fits no window."""
    metadata = small.llama_metadata() | {"general.name": (gb.STRING, WIDE)}
    small.write_llama(tmp_path / "good.gguf", metadata)
    small.write_llama(tmp_path / "bad.gguf", metadata, [*small.llama_tensors(), small.tensor(LONG, 4)])
    return tmp_path


COMMANDS = {
    "help": ["--help"],
    "help of a command": ["audit", "--help"],
    "results": ["audit", "bad.gguf", "--offline"],
    "listing": ["map", "bad.gguf", "--offline"],
    "error": ["audit", "none.gguf", "--offline"],
    "refusal": ["audit", "--nonsense"],
}


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
@pytest.mark.parametrize("command", ["help", "results", "error"])
def test_who_wants_no_colour_gets_no_escape_sequence(folder: Path, command: str, settings: dict[str, str]) -> None:
    said = in_terminal(folder, *COMMANDS[command], **settings)
    assert len(said) > 50
    assert "\x1b" not in said


@pytest.mark.parametrize("command", ["help", "results", "error"])
def test_a_terminal_gets_colours(folder: Path, command: str) -> None:
    assert "\x1b[1" in in_terminal(folder, *COMMANDS[command])


def test_a_pipe_gets_colours_only_when_forced(folder: Path) -> None:
    assert "\x1b" not in in_pipe(folder, *COMMANDS["results"])
    assert "\x1b[" in in_pipe(folder, *COMMANDS["results"], FORCE_COLOR="1")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_lines_fit_the_terminal(folder: Path, columns: int) -> None:
    for command in ("help", "help of a command", "results"):
        said = in_terminal(folder, *COMMANDS[command], columns=columns, NO_COLOR="1")
        too_long = [line for line in said.splitlines() if cell_len(line) > columns]
        # A command to copy is on one line, whatever its length.
        assert [line for line in too_long if not line.strip().startswith("ggufmap ")] == [], command
    assert WIDE in said
    assert LONG in re.sub(r"\s+", "", said)  # folded, not cut
    assert ("──" in said) is (columns == 200)  # the table only where it fits


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_columns_says_how_wide_a_pipe_is(folder: Path, columns: str) -> None:
    said = in_pipe(folder, *COMMANDS["results"], COLUMNS=columns)
    assert max(map(cell_len, said.splitlines())) <= int(columns)


@pytest.mark.parametrize("columns", ["", "0", "wide"])
def test_columns_that_are_no_width_are_no_fault(folder: Path, columns: str) -> None:
    assert "not ok: 1 problem" in in_pipe(folder, *COMMANDS["results"], COLUMNS=columns)


def test_a_narrow_window_shows_two_lines_per_pattern(folder: Path) -> None:
    lines = in_terminal(folder, "audit", "good.gguf", "--offline", columns=80, NO_COLOR="1").splitlines()
    at = lines.index("    2 x blk.*.attn_q.weight  F32")
    assert lines[at + 1] == "        -> model.layers.*.self_attn.q_proj.weight  rope_rows:4  dense"


# How loud it is.


@pytest.mark.parametrize("before", [True, False])
def test_quiet_leaves_results_and_errors(cli: Cli, model: Path, before: bool, tmp_path: Path) -> None:
    def run(*arguments: object) -> Result:
        return cli("-q", *arguments) if before else cli(*arguments, "--quiet")

    metadata = {key.replace("llama.", "llamb."): value for key, value in small.llama_metadata().items()}
    unknown = small.write_llama(tmp_path / "m.gguf", metadata | {"general.architecture": (gb.STRING, "llamb")})
    assert cli("audit", unknown, "--offline", "--rows", tmp_path / "rows.py").err.startswith("inferred rows written")
    assert run("audit", unknown, "--offline", "--rows", tmp_path / "again.py").err == ""
    assert (tmp_path / "again.py").is_file()
    assert run("audit", tmp_path / "none.gguf", "--offline").err.startswith("error: ")
    assert run("audit", model, "--offline").out == cli("audit", model, "--offline").out != ""


@pytest.mark.parametrize("before", [True, False])
def test_verbose_names_versions_stages_and_times(cli: Cli, model: Path, before: bool) -> None:
    found = cli("-v", "audit", model, "--offline") if before else cli("audit", model, "--offline", "--verbose")
    lines = found.err.splitlines()
    assert lines[0].startswith("ggufmap ") and "torch " in lines[0]
    stages = [line.rpartition(": ") for line in lines[1:]]
    assert [name for name, _, _ in stages] == [f"header of {model}", "config", "rows of llama"]
    assert all(re.fullmatch(r"\d+\.\d\d s", time) for _, _, time in stages)


def test_one_run_is_as_loud_as_the_next_asks_for(cli: Cli, model: Path) -> None:
    assert cli("-v", "audit", model, "--offline").err != ""
    assert cli("audit", model, "--offline").err == ""


def test_quiet_shows_no_progress(cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggufmap.serving import progress

    monkeypatch.setattr(progress, "INTERVAL_S", -1.0)
    arguments = ("bench", model, "--json")
    assert "GB/s" in cli(*arguments).err
    assert cli(*arguments, "-q").err == ""


def test_a_missing_file_is_said_before_vllm_is_asked(cli: Cli, tmp_path: Path) -> None:
    found = cli("audit", tmp_path / "none.gguf")
    assert found.code == 2
    assert "Asking vLLM" not in found.err


# Help.


@pytest.mark.parametrize("command", ["audit", "check", "map", "doctor", "serve", "config", "export", "bench"])
def test_help_groups_options_and_ends_with_examples(cli: Cli, command: str) -> None:
    text = cli(command, "--help").out
    headings = [line for line in text.splitlines() if re.fullmatch(r"[A-Z][^ ].*:", line)]
    assert headings[0] == "Arguments:" and headings[-2:] == ["General:", "Examples:"]
    assert len(headings) > 3
    assert f"  ggufmap {command} model.gguf" in text.partition("Examples:\n")[2]


def test_the_first_help_teaches_the_order(cli: Cli) -> None:
    text = cli("--help").out
    assert text.index("First `audit`") < text.index("Check a model:") < text.index("Serve it:")
    assert len([line for line in text.partition("Examples:\n")[2].splitlines() if line.startswith("  ggufmap ")]) == 3
    assert "..." not in text.partition("Check a model:")[2]  # first sentences stand there whole
