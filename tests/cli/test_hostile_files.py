"""Every file of the corpus through the commands: an exit code, a message or a report, and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli.conftest import Cli
from hostile.corpus import CASES, write
from hostile.models import vocabulary
from hostile.test_paths import BASE_MODEL
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

COMMANDS: dict[str, tuple[str, ...]] = {
    "audit --json": ("--offline", "--json"),
    "config": ("-o", "out"),
    "serve": ("--offline", "--dry-run"),  # a report for a person as well
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_file_ends_with_a_code_and_a_message(cli: Cli, tmp_path: Path, command: str) -> None:
    codes: Counter[int] = Counter()
    name, *more = command.split()
    for index, case in enumerate(CASES):
        folder = tmp_path / "in" / str(index)
        folder.mkdir(parents=True)
        out = tmp_path / "out" / str(index)
        options = [out if option == "out" else option for option in COMMANDS[command] if option not in more]
        found = cli(name, write(case, folder), *more, *options)
        where = f"{case.kind}: {case.name}: {found}"
        codes[found.code] += 1
        assert found.code in (0, 1, 2, 3), where
        assert "Traceback" not in found.err, where
        assert "\x1b" not in found.out + found.err and "\0" not in found.out + found.err, where
        if found.code == 2:
            assert found.out == "" and any(line.startswith("error: ") for line in found.err.splitlines()), where
        elif more:
            json.dumps(found.json, allow_nan=False)  # no number that is none
    # Headers that are read are no models, most of them: the mapping has problems, or the config cannot be made.
    assert codes[2] > 100 and sum(codes.values()) == len(CASES), codes
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "out", "cache"}


@pytest.mark.parametrize("command", ["audit", "map"])
def test_names_are_shown_as_text(cli: Cli, tmp_path: Path, command: str) -> None:
    """A terminal must not obey a file."""
    names = ["\x1b[2J\x1b]0;title\x07", "a\rb", "\u202eltr", "[red]x[/red]", "a\nerror: b"]
    odd = [TensorSpec(name, (1,)) for name in names]
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), *odd])
    found = cli(command, path, "--offline")
    assert found.code == 1
    for bad in ("\x1b", "\x07", "\r", "\u202e", "\nerror: b"):
        assert bad not in found.out + found.err
    assert "[red]x[/red]" in found.out
    assert "\\x1b[2J" in found.out


WORDS = (
    *("</script><script>alert(1)</script>", "a\n::error file=x::injected", "%0A::warning::x", "\x1b[2J", "\x01\ufffe"),
    *("| a | `b` | **c** [x](javascript:alert(1))", "]]>", "&lt;", "${{ github.token }}", '" onmouseover="alert(1)'),
)


@pytest.mark.parametrize("form", ["json", "junit", "sarif", "markdown", "github"])
def test_names_do_not_break_out_of_a_format(cli: Cli, tmp_path: Path, form: str) -> None:
    meta = small.llama_metadata() | {"general.name": (gb.STRING, "".join(WORDS))}
    odd = [TensorSpec(name, (1,)) for name in WORDS]
    path = small.write_llama(tmp_path / "m.gguf", meta, [*small.llama_tensors(), *odd])
    found = cli("check", path, "--offline", "--format", form)
    assert found.code == 1 and "Traceback" not in found.err
    assert not any((ord(c) < 32 and c != "\n") or c == "\ufffe" for c in found.out)
    if form in ("json", "sarif"):
        assert "</script><script>alert(1)</script>" in json.dumps(found.json)
    elif form == "junit":
        texts = [
            text for node in ElementTree.fromstring(found.out).iter() for text in (node.text, *node.attrib.values())
        ]
        assert any("</script><script>alert(1)</script>" in (text or "") for text in texts)
    elif form == "github":  # a command per line, and no more of them than there are problems
        lines = found.out.splitlines()
        assert len(lines) == len(WORDS) + 1 and all(line.startswith("::error title=ggufmap") for line in lines)
    else:  # all that comes from the file is in spans of code
        rest = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", found.out)
        assert "script" not in rest and "](" not in rest and "onmouseover" not in rest and "token" not in rest


def test_the_command_that_serve_builds_trusts_no_code(cli: Cli, tmp_path: Path) -> None:
    """Whatever the header says of base models and repositories; a person may still say so after the `--`."""
    path = small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | vocabulary() | BASE_MODEL)
    found = cli("serve", path, "--offline", "--dry-run", "--force")
    assert found.code == 0, found.err
    words = shlex.split(found.out)
    assert words[words.index("serve") + 1 if "serve" in words else words.index("--model") + 1].startswith(str(tmp_path))
    for bad in ("trust", "remote", "evil", "example.org"):
        assert bad not in found.out
    asked = cli("serve", path, "--offline", "--dry-run", "--force", "--", "--trust-remote-code")
    assert shlex.split(asked.out) == [*words, "--trust-remote-code"]
