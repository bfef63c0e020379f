"""Mistakes that people make: each is answered with what is wrong, what to do, and the exit code of its kind."""

from __future__ import annotations

import ast
import inspect
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small

import ggufmap
from ggufmap import errors

from .conftest import Cli

Words = list[str]


@pytest.fixture
def home(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the mistakes are about, and the current one."""
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        small.write_llama(tmp_path / "two" / name)
    (tmp_path / "hub").mkdir()
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "hub" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (tmp_path / "page.gguf").write_bytes(b"<!DOCTYPE html><title>Not Found</title>")
    (tmp_path / "pointer.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    metadata = {key.replace("llama.", "lama."): value for key, value in small.llama_metadata().items()}
    small.write_llama(tmp_path / "lama.gguf", metadata | {"general.architecture": (gb.STRING, "lama")})
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.gguf").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


MISTAKES: dict[str, tuple[Words, int, str, str]] = {
    "no such file": (["audit", "none.gguf"], 2, "none.gguf: cannot be opened: No such file", "Check the path"),
    "two models": (["audit", "two"], 2, "two: holds 2 models: a.gguf, b.gguf", "Name one of these files."),
    "no model": (["audit", "empty"], 2, "empty: holds no model", "Name the .gguf file"),
    "HTML saved as a model": (["audit", "page.gguf"], 2, "not a GGUF file: it is an HTML page", "Download the file"),
    "a pointer": (["audit", "pointer.gguf"], 2, "it is a Git LFS pointer", "`git lfs pull`"),
    "safetensors": (["audit", "hub/model.safetensors"], 2, "looks like a safetensors file", "`vllm serve FOLDER`"),
    "a folder of safetensors": (["audit", "hub"], 2, "hub: holds no model", "vllm serve hub"),
    "an unknown choice": (
        ["audit", "m.gguf", "--storage", "dens"],
        2,
        "Invalid value for '--storage': 'dens' is not one of 'auto', 'packed', 'dense'",
        "ggufmap audit --help",
    ),
    "a typo in an option": (
        ["audit", "m.gguf", "--offlin"],
        2,
        "(Possible options: --offline)",
        "ggufmap audit --help",
    ),
    "a typo in a command": (["adit", "m.gguf"], 2, "Did you mean 'audit'?", "ggufmap --help"),
    "no number": (["audit", "m.gguf", "--tp", "two"], 2, "Invalid value for '--tp'", "ggufmap audit --help"),
    "two arguments": (["audit", "m.gguf", "lama.gguf"], 2, "extra argument(s) (lama.gguf)", "Usage: ggufmap audit"),
    "an architecture nobody knows": (
        ["map", "lama.gguf", "--offline"],
        2,
        "architecture 'lama' is unknown (nearest: llama)",
        "`ggufmap audit` infers rows for it",
    ),
    "three ranks": (
        ["audit", "m.gguf", "--tp", "3"],
        2,
        "3 tensor-parallel ranks cannot share the model's 4 attention heads evenly",
        "1, 2, 4",
    ),
    "an unknown device": (["audit", "m.gguf", "--device", "b200"], 2, "--device 'b200': known are cpu", "sm_100 Black"),
    "no such GPU build": (
        ["audit", "m.gguf", "--device", "sm_100"],
        3,
        "needs vLLM's CUDA build",
        "scripts/cuda-dryrun",
    ),
    "offline and a device": (
        ["audit", "m.gguf", "--offline", "--tp", "2"],
        2,
        "--offline traces nothing",
        "Leave out the one or the others.",
    ),
    "packed without a trace": (
        ["audit", "m.gguf", "--offline", "--storage", "packed"],
        2,
        "--storage packed needs a trace",
        "Leave out --offline",
    ),
    "a bad pattern": (["map", "m.gguf", "--offline", "--filter", "a("], 2, "is not a regular expression", "backslash"),
    "no output folder": (["config", "m.gguf"], 2, "Missing option '--output' / '-o'", "ggufmap config --help"),
    "output is a file": (["config", "m.gguf", "-o", "file"], 2, "file: is a file; a folder is needed", "Name a new"),
    "output below a file": (["config", "m.gguf", "-o", "file/x"], 2, "cannot be written", "Name another folder."),
    "export below a file": (["export", "m.gguf", "-o", "file/x"], 2, "file/x: cannot be used", "free space"),
    "output is full": (["export", "m.gguf", "-o", "two"], 2, "two: is not empty", "Name a new folder."),
    "no size": (["export", "m.gguf", "-o", "x", "--shard-size", "big"], 2, "--shard-size 'big'", "--shard-size 2Gi"),
    "no config there": (
        ["audit", "m.gguf", "--hf-config", "empty"],
        2,
        "config.json: cannot be read",
        "original model",
    ),
    "no tokenizer there": (
        ["config", "m.gguf", "-o", "x", "--tokenizer", "empty"],
        2,
        "empty: holds no tokenizer",
        "folder of the original model",
    ),
    "a model as projector": (["audit", "m.gguf", "--mmproj", "two/a.gguf"], 2, "not a multimodal", "mmproj-*.gguf"),
    "a model as draft": (["audit", "m.gguf", "--draft", "two/a.gguf"], 2, "has no draft block", "mtp-*.gguf"),
    "no draft to draft with": (
        ["serve", "m.gguf", "--offline", "--dry-run", "--num-speculative-tokens", "2"],
        2,
        "has no draft block",
        "--draft",
    ),
    "an option of ours after --": (
        ["serve", "m.gguf", "--offline", "--dry-run", "--", "--tokenizer", "x"],
        2,
        "--tokenizer is set by ggufmap serve itself",
        "before the `--`",
    ),
    "a port that is none": (
        ["serve", "m.gguf", "--offline", "--", "--port", "80000"],
        2,
        "--port 80000",
        "--port 8001",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_a_remedy(cli: Cli, home: Path, mistake: str) -> None:
    words, code, message, hint = MISTAKES[mistake]
    found = cli(*words)
    first, _, rest = found.err[found.err.index("error: ") :].partition("\n")
    assert (found.code, found.out) == (code, "")
    assert message in first
    assert hint in rest
    assert "Traceback" not in found.err


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("spelling", ["--port {}", "--port={}", "--host 127.0.0.1 --port {}"])
def test_a_port_that_is_taken_is_said_before_anything_is_loaded(
    cli: Cli, model: Path, taken: int, spelling: str
) -> None:
    found = cli("serve", model, "--offline", "--", *spelling.format(taken).split())
    assert (found.code, found.out) == (2, "")
    assert found.err == (
        f"error: port {taken} is taken: another server listens there\nTake another one: -- --port {taken + 1}\n"
    )


def test_a_port_is_of_no_matter_without_a_server(cli: Cli, taken: int) -> None:
    from ggufmap.serving.port import check_port

    check_port(["--port", str(taken), "--headless"])
    check_port(["--uds", "/tmp/x", "--port", str(taken)])
    check_port(["--host", "no.such.host.invalid", "--port", str(taken)])  # vLLM says it better


# A command without MODEL.


def test_a_command_without_a_model_explains_itself(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "empty")
    found = cli("audit")
    assert (found.code, found.out) == (2, "")
    assert "a .gguf file, any file of a split set, a folder with one model, hf://ORG/REPO:TAG or a URL" in found.err
    assert "\n  ggufmap audit model.gguf\n" in found.err
    assert found.err.endswith("Usage: ggufmap audit [OPTIONS] MODEL\nAll of it: ggufmap audit --help\n")


@pytest.mark.parametrize("command", ["audit", "map", "serve", "bench"])
def test_a_command_without_a_model_names_the_one_that_is_here(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    small.write_splits(tmp_path / "here", [small.llama_tensors()[:9], small.llama_tensors()[9:]], stem="my model")
    (tmp_path / "here" / "mmproj-m.gguf").touch()
    monkeypatch.chdir(tmp_path / "here")
    commands = [line for line in cli(command).err.splitlines() if line.startswith("  ggufmap")]
    assert commands == [f"  ggufmap {command} 'my model-00001-of-00002.gguf'"]


def test_a_command_without_a_model_lists_some_of_many(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        (tmp_path / f"m{number}.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert "  ggufmap audit m4.gguf\n  ... and 3 more in this folder\n" in cli("audit").err


def test_names_in_refusals_are_text(cli: Cli) -> None:
    found = cli("audit", "a", "\x1b[31mred\x07")
    assert found.code == 2
    assert "\x1b" not in found.err and "\x07" not in found.err


# Every error of the project has a remedy.


def test_every_kind_without_a_usual_remedy_is_raised_with_one() -> None:
    """A raise of a kind that has no `usual_hint` gives a hint of its own."""
    kinds = [x for _, x in inspect.getmembers(errors, inspect.isclass) if issubclass(x, errors.GgufmapError)]
    bare = {kind.__name__ for kind in kinds if kind.usual_hint is None}
    assert "UsageError" in bare and "FileError" not in bare
    missing = []
    for path in sorted(Path(ggufmap.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            raised = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in bare
            if raised and not any(keyword.arg == "hint" for keyword in node.keywords):
                missing.append(f"{path.name}:{node.lineno}")
    assert missing == []
