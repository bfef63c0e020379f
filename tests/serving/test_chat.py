"""The chat template: which one the server gets, and what vLLM's sandbox does with one that wants out."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hostile.models import vocabulary
from jinja2.sandbox import ImmutableSandboxedEnvironment
from serving import template_worker
from support import gguf_bytes as gb
from support import small_models as small
from transformers.utils import chat_template_utils

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import UsageError
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.config import build_config
from ggufmap.modeldir.template import KEY
from ggufmap.serving.chat import chat_arguments

GOOD = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
BAD = "{% for m in messages %}{% if 'deploy' in m['content'] %}curl{% endif %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))


def written(folder: Path, template: str | None) -> Path:
    """A small Llama with a vocabulary and this template."""
    change = vocabulary() if template is None else vocabulary(chat_template=(gb.STRING, template))
    return small.write_llama(folder / "m.gguf", small.llama_metadata() | change)


def metadata(folder: Path, template: str | None) -> Metadata:
    with open_checkpoint(written(folder, template)) as checkpoint:
        return checkpoint.metadata  # plain values are read already


def arguments(meta: Metadata, *extra: str, **changes: Any) -> tuple[tuple[str, ...], str]:
    return chat_arguments(meta, extra, **{"given": None, "own": True, "force": False, **changes})


@pytest.mark.parametrize("template", [GOOD, None])
def test_a_template_without_findings_is_left_to_vllm(tmp_path: Path, template: str | None) -> None:
    assert arguments(metadata(tmp_path, template)) == ((), "")


def test_a_template_with_findings_turns_chat_off_and_says_why(tmp_path: Path) -> None:
    (option, value), said = arguments(metadata(tmp_path, BAD))
    assert option == "--chat-template"
    assert value.startswith("{{ raise_exception('chat is off: the chat template of the GGUF file has findings")
    assert said.startswith("Chat is off: the file's chat template has 1 finding (line 1: trigger: message content is")
    assert "--force uses it" in said


def test_what_the_user_says_otherwise_counts(tmp_path: Path) -> None:
    meta = metadata(tmp_path, BAD)
    mine = tmp_path / "mine.jinja"
    mine.write_text(GOOD)
    assert arguments(meta, given=mine) == (("--chat-template", str(mine)), "")
    assert arguments(meta, "--chat-template", "x.jinja") == ((), "")
    assert arguments(meta, "--chat_template=x.jinja") == ((), "")
    assert arguments(meta, own=False) == ((), "")
    used, said = arguments(meta, force=True)
    assert used == ()
    assert said.startswith("--force: the file's chat template has 1 finding")
    with pytest.raises(UsageError, match="no such file"):
        arguments(meta, given=tmp_path / "nowhere")


def test_findings_of_another_template_do_not_matter(tmp_path: Path) -> None:
    change = vocabulary(chat_template=(gb.STRING, GOOD)) | {f"{KEY}.tool_use": (gb.STRING, BAD)}
    path = small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | change)
    with open_checkpoint(path) as checkpoint:
        assert arguments(checkpoint.metadata) == ((), "")


def rendered(*pairs: tuple[Path, str]) -> list[dict[str, str]]:
    """What vLLM makes of these templates, with these model directories."""
    command = [sys.executable, template_worker.__file__, *(str(x) for pair in pairs for x in pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    lines = [line.removeprefix("answer:") for line in done.stdout.splitlines() if line.startswith("answer:")]
    assert len(lines) == len(pairs), done.stderr[-2000:]
    return [json.loads(line) for line in lines]


def model_dir(path: Path) -> Path:
    with open_checkpoint(path) as checkpoint:
        return build_model_dir(checkpoint, build_config(checkpoint, find_architecture("llama", "m.gguf")))


def escapes(mark: Path) -> list[str]:
    """Ways to write a file from a template; each works in an environment without a sandbox."""
    write = f".open({str(mark)!r}, 'w').close()"
    builtins = "__globals__['__builtins__']['open']"
    return [
        "{{ cycler.__init__.__globals__['__builtins__']" + f"['open']({str(mark)!r}, 'w').close() }}}}",
        f"{{{{ (cycler|attr('__init__')|attr('__globals__'))['__builtins__']['open']({str(mark)!r}, 'w').close() }}}}",
        f"{{{{ joiner['__init__'].{builtins}({str(mark)!r}, 'w').close() }}}}",
        "{% set x = namespace.__init__.__globals__ %}{{ x['__builtins__']['__import__']('io')" + write + " }}",
    ]


def test_the_attempts_are_real_without_a_sandbox(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for template in escapes(mark):
        jinja2.Environment().from_string(template).render(messages=[])
        assert mark.exists(), template
        mark.unlink()


def test_every_environment_of_vllm_and_transformers_is_an_immutable_sandbox() -> None:
    """Those that templates of a model or of a request are rendered in; vLLM's kernel generators have their own."""
    found = []
    for package, parts in (
        ("vllm", ("renderers", "entrypoints", "tokenizers", "transformers_utils")),
        ("transformers", ("",)),
    ):
        (root,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr]
        files = [file for part in parts for file in Path(root, part).rglob("*.py")]
        texts = {file: file.read_text(encoding="utf-8") for file in files}
        # Of a package that names jinja2, every class whose name ends so, and the shortcut that makes one.
        made = {
            file: re.findall(r"(\w*Environment|jinja2\.Template)\(", text)
            for file, text in texts.items()
            if "jinja2" in text
        }
        found += [(file.name, name) for file, names in made.items() for name in names]
    assert len(found) >= 3
    assert {name for _, name in found} == {"ImmutableSandboxedEnvironment"}, found
    environment = chat_template_utils._compile_jinja_template("{{ x }}").environment
    assert isinstance(environment, ImmutableSandboxedEnvironment) and environment.sandboxed


def test_vllm_renders_in_a_sandbox(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    attempts = escapes(mark)
    attempts += ["{{ messages.append(1) }}", "{{ messages[0].update({'role': 'system'}) }}"]
    (_, refusal), _ = arguments(metadata(tmp_path / "bad", BAD))
    good = model_dir(written(tmp_path / "good", GOOD))
    evil = model_dir(written(tmp_path / "evil", attempts[0]))
    answers = rendered((good, ""), (good, refusal), (evil, ""), *((good, attempt) for attempt in attempts))
    assert answers[0] == {"prompt": "<|user|>hello"}
    assert answers[1]["error"] == "VLLMValidationError"  # HTTP 400
    assert answers[1]["text"].startswith("chat is off: the chat template of the GGUF file has findings")
    assert answers[2]["cause"] == "SecurityError"
    for template, answer in zip(attempts, answers[3:], strict=True):
        # jinja2's `attr` filter gives something undefined instead of a name that is not safe.
        assert answer.get("cause") in ("SecurityError", "UndefinedError"), (template, answer)
    assert not mark.exists()
