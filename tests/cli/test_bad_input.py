"""Bad input: each kind has its message, its way out and its exit code, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec
from support.unprivileged import without_root

from .conftest import Cli

Maker = Callable[[Path], Path]


def file(data: bytes, name: str = "m.gguf") -> Maker:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def cut(keep: float) -> Maker:
    def make(folder: Path) -> Path:
        path = small.write_llama(folder / "m.gguf")
        os.truncate(path, int(path.stat().st_size * keep))
        return path

    return make


def missing_split(folder: Path) -> Path:
    paths = small.write_splits(folder, [small.llama_tensors()[:9], small.llama_tensors()[9:]])
    paths[1].unlink()
    return paths[0]


def architecture(name: str) -> Maker:
    def make(folder: Path) -> Path:
        return small.write_llama(
            folder / "m.gguf", small.llama_metadata() | {"general.architecture": (gb.STRING, name)}
        )

    return make


def two_models(folder: Path) -> Path:
    small.write_llama(folder / "a.gguf")
    small.write_llama(folder / "b.gguf")
    return folder


def broken_config(folder: Path) -> Path:
    (folder / "config.json").write_text("{")
    return small.write_llama(folder / "m.gguf")


def metadata(**keys: tuple[int, object]) -> Maker:
    def make(folder: Path) -> Path:
        return small.write_llama(
            folder / "m.gguf", small.llama_metadata() | {k.replace("__", "."): v for k, v in keys.items()}
        )

    return make


CASES: dict[str, tuple[Maker, str, str]] = {
    "no GGUF": (file(b"hello"), "not a GGUF file: it starts with b'hell'", "Download the file again"),
    "HTML page": (file(b"<!DOCTYPE html><html>"), "not a GGUF file: it is an HTML page", "saved error page"),
    "empty file": (file(b""), "not a GGUF file: the file is empty", "Download the file again"),
    "truncated header": (cut(0.001), "tensor count 21 needs 525 bytes", "The header is cut off or damaged"),
    "truncated key": (cut(0.0018), "truncated: ", "The header is cut off or damaged"),
    "truncated data": (cut(0.99), "truncated: tensor output.weight needs 12288 bytes", "download is incomplete"),
    "missing split": (missing_split, "1 of 2 splits are missing: m-00002-of-00002.gguf", "Put all splits in"),
    "projector as the model": (architecture("clip"), "is a multimodal projector (mmproj)", "Give the text model's"),
    "two models": (two_models, "holds 2 models: a.gguf, b.gguf", "Name one of these files."),
    "empty folder": (lambda folder: folder, "holds no model", ""),
    "nonexistent": (
        lambda folder: folder / "none.gguf",
        "cannot be opened: No such file or directory",
        "Check the path",
    ),
    "device": (lambda folder: Path("/dev/null"), "/dev/null: not a regular file", ""),
    "broken config": (broken_config, "config.json: not valid JSON", ""),
    "absurd block count": (metadata(llama__block_count=(gb.UINT32, 10**9)), "llama.block_count is 1000000000", ""),
    "wrong type": (
        metadata(llama__block_count=(gb.STRING, "2")),
        "llama.block_count should be an integer, found string",
        "",
    ),
}


@pytest.mark.parametrize("command", ["audit", "map", "serve", "config"])
@pytest.mark.parametrize("name", CASES)
def test_is_said_and_exits_with_2(cli: Cli, tmp_path: Path, name: str, command: str) -> None:
    make, message, hint = CASES[name]
    (tmp_path / "in").mkdir()
    path = make(tmp_path / "in")
    extra = ["-o", tmp_path / "out"] if command == "config" else ["--offline"]
    found = cli(command, path, *extra)
    assert found.code == 2
    assert found.out == ""
    lines = found.err.splitlines()
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert str(path) in found.err or str(path.parent / "config.json") in found.err
    assert hint in "\n".join(lines[1:]) and bool(hint) <= (len(lines) > 1)
    assert "Traceback" not in found.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("id", [4, 43, 153])
def test_an_unusable_type_that_is_needed_is_a_bad_mapping(cli: Cli, tmp_path: Path, id: int) -> None:
    odd = TensorSpec("blk.1.attn_v.weight", (64, 32), id, bytes(2048))
    path = small.write_llama(tmp_path / "m.gguf", tensors=small.replaced(small.llama_tensors(), odd))
    found = cli("audit", path, "--offline", "--json")
    assert found.code == 1
    (wrong,) = found.json["mismatched"]
    assert wrong["tensor"] == "blk.1.attn_v.weight"
    assert f"(id {id})" in wrong["reason"]
    listed = cli("map", path, "--offline")
    assert listed.code == 1
    assert any(line.startswith("blk.1.attn_v.weight  mismatched: ggml type ") for line in listed.out.splitlines())
    served = cli("serve", path, "--offline", "--dry-run")
    assert served.code == 1
    assert f"error: not served: the mapping of {path} has 1 problem\n" in served.err


def test_an_unusable_type_that_nobody_needs_is_none(cli: Cli, tmp_path: Path) -> None:
    odd = TensorSpec("rope_freqs.weight", (8,), 43, bytes(32))
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), odd])
    # The factors are needed for the config all the same, and cannot be read.
    found = cli("audit", path, "--offline")
    assert found.code == 2
    assert "rope_freqs.weight has type unknown_43, F32 expected" in found.err


def test_unreadable_file(cli: Cli) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        path = small.write_llama(Path(name) / "m.gguf")
        path.chmod(0)
        with without_root():
            found = cli("audit", path, "--offline")
    assert found.code == 2
    assert found.err.splitlines() == [
        f"error: {path}: cannot be opened: Permission denied",
        "Check the file's permissions.",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["map", "MODEL", "--offline", "--filter", "a("], "--filter 'a(' is not a regular expression"),
        (["audit", "MODEL", "--offline", "--device", "sm_100"], "--offline traces nothing"),
        (["audit", "MODEL", "--device", "gpu"], "--device 'gpu': known are cpu and sm_XY"),
        (["audit", "MODEL", "--tp", "0", "--device", "cpu"], "--tp 0: allowed are 1 to"),
        (["audit", "MODEL", "--offline", "--hf-config", "/nowhere"], "/nowhere: cannot be read"),
        (
            ["serve", "MODEL", "--offline", "--dry-run", "--", "--load-format", "auto"],
            "--load-format is set by ggufmap",
        ),
        (["config", "MODEL", "-o", "MODEL"], "is a file; a folder is needed"),
    ],
)
def test_bad_usage_exits_with_2(cli: Cli, model: Path, arguments: list[str], message: str) -> None:
    found = cli(*(str(model) if x == "MODEL" else x for x in arguments))
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize("arguments", [[], ["audit"], ["nonsense"], ["audit", "x", "--nonsense"], ["config", "x"]])
def test_what_the_parser_refuses_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    found = cli(*arguments)
    assert found.code == 2
    assert "Usage: ggufmap" in found.out + found.err


def test_an_error_is_a_traceback_for_who_asks(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ggufmap.cli.main import main
    from ggufmap.errors import FileError

    monkeypatch.setenv("GGUFMAP_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["ggufmap", "audit", str(model) + "x", "--offline"])
    with pytest.raises(FileError):
        main()


HOSTILE = "\x1b[31mred\x1b[0m[bold]x[/bold]\x07\u202e"
SHOWN = r"\x1b[31mred\x1b[0m[bold]x[/bold]\x07\u202e"


@pytest.mark.parametrize(
    "data",
    [
        gb.build([(HOSTILE, gb.UINT8, 1), (HOSTILE, gb.UINT8, 1)]),
        gb.build([], [TensorSpec(HOSTILE), TensorSpec(HOSTILE)]),
        small.encode(small.llama_metadata() | {"general.architecture": (gb.STRING, HOSTILE)}, small.llama_tensors()),
    ],
    ids=["key", "tensor", "architecture"],
)
def test_names_in_errors_are_text(cli: Cli, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    found = cli("audit", tmp_path / "m.gguf", "--offline")
    assert found.code == 2
    assert "\x1b" not in found.err and "\x07" not in found.err and "\u202e" not in found.err
    assert SHOWN in found.err.replace("\n", "").replace("\\\\", "\\")


@pytest.mark.parametrize("command", ["audit", "map"])
def test_names_in_results_are_text(cli: Cli, tmp_path: Path, command: str) -> None:
    tensors = [*small.llama_tensors(), small.tensor(HOSTILE, 4)]
    path = small.write_llama(tmp_path / "m.gguf", tensors=tensors)
    found = cli(command, path, "--offline")
    assert found.code == 1
    assert "\x1b" not in found.out + found.err and "\x07" not in found.out and "\u202e" not in found.out
    assert SHOWN in found.out
    exact = cli(command, path, "--offline", "--json").json
    entries = exact["unmapped"] if command == "audit" else [x for x in exact if x["role"] == "unmapped"]
    assert [x["tensor"] for x in entries] == [HOSTILE]


@pytest.mark.parametrize("columns", [40, 41, 80, 160])
@pytest.mark.parametrize("command", ["audit", "map", "check"])
def test_no_name_commands_a_workflows_runner(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    """GitHub's runner obeys what a line of a job's log begins with, indented or not, on either stream."""
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ["::error::a", *("x" * width + "::set-output name=a::b" for width in (7, 20, 40)), "##[error]c"]
    model = small.write_llama(
        tmp_path / "m.gguf", tensors=[*small.llama_tensors(), *(small.tensor(n, 4) for n in names)]
    )
    (tmp_path / "broken.gguf").write_bytes(gb.build([], [TensorSpec("::error::d"), TensorSpec("::error::d")]))
    for path, code in ((model, 1), (tmp_path / "broken.gguf", 2)):
        found = cli(command, path, "--offline")
        assert found.code == code
        lines = (found.out + found.err).splitlines()
        assert not [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
    assert r"tensor \x3a:error" in found.err.replace("\n", " ")


def test_the_installed_command_has_the_same_exit_codes(model: Path, tmp_path: Path) -> None:
    """The others run `main` in this process; the script in the environment does the same."""
    script = Path(sys.executable).with_name("ggufmap")
    extra = small.write_llama(tmp_path / "extra.gguf", tensors=[*small.llama_tensors(), small.tensor("x", 4)])
    for path, code in ((model, 0), (extra, 1), (tmp_path / "none", 2)):
        done = subprocess.run([script, "audit", path, "--offline", "--json"], capture_output=True, text=True)
        assert done.returncode == code
        assert bool(done.stdout) is (code < 2)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["map"], ["map", "--json"], ["audit", "--json"], ["audit"]])
def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path, command: list[str]) -> None:
    """`ggufmap map x.gguf | head -1` under `set -o pipefail`."""
    script = Path(sys.executable).with_name("ggufmap")
    path = small.write_llama(tmp_path / "m.gguf", small.llama_metadata(40), small.llama_tensors(40))
    process = subprocess.Popen(
        [script, command[0], path, "--offline", *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
