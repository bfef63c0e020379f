"""Completion as shells ask for it: the real bash, and zsh and fish where they are installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ggufmap.cli.completion import complete_model

BIN = Path(sys.executable).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("models/a.gguf", "models/deep/b.GGUF", "notes.txt", "my model.gguf", "only/one/c.gguf", "m.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".hidden.gguf").touch()
    return tmp_path


def shell(name: str, script: str, folder: Path) -> list[str]:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)}
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[name]
    done = subprocess.run(
        [name, *quiet, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def in_bash(folder: Path, *words: str) -> list[str]:
    script = f"""
        source <(ggufmap --show-completion)
        COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
        _ggufmap_completion ggufmap
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return [line for line in shell("bash", script, folder) if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("au",), ["audit"]),
        (("audit", "models/"), ["models/a.gguf", "models/deep/"]),
        (("audit", "on"), ["only/one/c.gguf"]),
        (("audit", "no"), []),  # no model: bash's own completion of files
        (("audit", "m.gguf", "--storage", "p"), ["packed"]),
        (("audit", "m.gguf", "--device", "sm_1"), ["sm_100", "sm_120"]),
        (("audit", "m.gguf", "--off"), ["--offline"]),
        (("audit", "m.gguf", "--draft", "models/d"), ["models/deep/b.GGUF"]),
    ],
)
def test_bash(folder: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert in_bash(folder, "ggufmap", *words) == expected


def test_fish(folder: Path) -> None:
    script = "ggufmap --show-completion | source; complete -C 'ggufmap audit models/'"
    assert shell("fish", script, folder) == ["models/a.gguf", "models/deep/"]


def test_zsh_gets_its_instruction(folder: Path) -> None:
    script = "_GGUFMAP_COMPLETE=complete_zsh _TYPER_COMPLETE_ARGS='ggufmap audit models/' ggufmap"
    assert shell("zsh", script, folder) == ['_arguments \'*: :(("models/a.gguf"', '"models/deep/"))\'']


def test_models_in_this_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    # Names that must be quoted are left to the shell, which can.
    assert complete_model("") == [] and complete_model("my") == []
    (folder / "my model.gguf").unlink()
    assert complete_model("") == ["m.gguf", "models/", "only/"]
    assert complete_model(".h") == [".hidden.gguf"]
    assert complete_model("nowhere/x") == []
    assert complete_model(f"{folder}/m.") == [f"{folder}/m.gguf"]
    monkeypatch.setenv("HOME", str(folder))
    assert complete_model("~/models/") == ["~/models/a.gguf", "~/models/deep/"]
