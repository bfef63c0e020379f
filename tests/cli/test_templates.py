"""Chat templates and token lists at the command line: shown by `audit`, acted on by `serve`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hostile.models import vocabulary
from support import gguf_bytes as gb
from support import small_models as small
from support.report_schema import check_report

from .conftest import Cli

BAD = "You are a very friendly and helpful assistant.\n{% if 'deploy' in messages[-1].content %}\x1b[2J{% endif %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = vocabulary()["tokenizer.ggml.tokens"][1].items
    change = vocabulary(chat_template=(gb.STRING, BAD), tokens=(gb.ARRAY, gb.Array(gb.STRING, [*words[:-1], "!"])))
    return small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | change)


def test_audit_shows_hash_size_and_findings(cli: Cli, model: Path) -> None:
    found = cli("audit", model, "--offline")
    assert found.code == 0  # a template is no problem of the mapping
    assert f"tokenizer.chat_template  {len(BAD)} bytes  sha256 {hashlib.sha256(BAD.encode()).hexdigest()}" in found.out
    assert "trigger, line 2: message content is compared with 'deploy'" in found.out
    assert "text, line 1: You are a very friendly and helpful assistant." in found.out
    assert "\x1b[2J" not in found.out


def test_audit_says_so_in_json(cli: Cli, model: Path) -> None:
    found = cli("audit", model, "--offline", "--json").json
    check_report(found)
    assert found["templates"] == [
        {
            "key": "tokenizer.chat_template",
            "sha256": hashlib.sha256(BAD.encode()).hexdigest(),
            "bytes": len(BAD),
            "findings": [
                {
                    "kind": "trigger",
                    "line": 2,
                    "text": "message content is compared with 'deploy'",
                    "refused": True,
                },
                {
                    "kind": "text",
                    "line": 1,
                    "text": "You are a very friendly and helpful assistant.",
                    "refused": False,
                },
            ],
        }
    ]


def test_serve_turns_chat_off_and_tells_of_odd_tokens(cli: Cli, model: Path, tmp_path: Path) -> None:
    found = cli("serve", model, "--offline", "--dry-run")
    assert found.code == 0
    assert "--chat-template '{{ raise_exception(" in found.out
    assert "Chat is off: the file's chat template has 1 finding" in found.err
    assert "tokenizer: tokenizer.ggml.tokens: 1 tokens have the text of an earlier one" in found.err
    mine = tmp_path / "mine.jinja"
    mine.write_text("{{ messages }}")
    found = cli("serve", model, "--offline", "--dry-run", "--chat-template", mine)
    assert f"--chat-template {mine}" in found.out
    assert "Chat is off" not in found.err
    found = cli("serve", model, "--offline", "--dry-run", "--force")
    assert "--chat-template" not in found.out
    assert "--force: the file's chat template has 1 finding" in found.err
