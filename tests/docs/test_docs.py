"""The documentation is true: links lead somewhere, commands exist, transcripts are what the commands print."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import doc_models

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WARNING = re.compile(r"\bW1\d\d\b")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_readme_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} == linked


def test_every_warning_of_the_code_is_explained() -> None:
    used = set()
    for file in (ROOT / "ggufmap").rglob("*.py"):
        used |= set(WARNING.findall(file.read_text(encoding="utf-8")))
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| (W1\d\d) \|", page, re.MULTILINE))
    assert used == explained
    for other in PAGES:
        assert set(WARNING.findall(other.read_text(encoding="utf-8"))) <= explained, other


def test_the_command_line_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "cli-docs", "--check"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr  # it names the script to run


# Commands.


def console_lines() -> Iterator[tuple[Path, str]]:
    """Each `ggufmap ...` of the blocks that show a shell, with its page."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language in ("console", "bash", "sh"):
                for line in text.replace("\\\n", " ").splitlines():
                    words = line.strip().removeprefix("$ ")
                    if words.startswith("ggufmap "):
                        yield page, words


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that `words` name, and what is left of them."""
    from typer.main import get_command

    from ggufmap.cli.main import app

    command: Any = get_command(app)
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        assert words[0] in command.commands, f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", sorted({page for page, _ in console_lines()}), ids=name)
def test_every_command_on_a_page_exists(page: Path) -> None:
    for _, line in (x for x in console_lines() if x[0] == page):
        words = list(
            itertools.takewhile(lambda w: w not in ("|", ">", "&&", ";", "&"), shlex.split(line, comments=True))
        )
        command, rest = command_of(words[1:])
        known = {"--help", *(option for param in command.params for option in param.opts)}
        given = [word.split("=")[0] for word in itertools.takewhile(lambda w: w != "--", rest) if word.startswith("-")]
        assert set(given) <= known, line


# Transcripts.


def transcripts() -> Iterator[tuple[str, str, str]]:
    """Page, command and what it prints, of the commands that need nothing but the files of doc_models."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if language == "console" and text.startswith("$ ggufmap "):
                command, _, output = text.removeprefix("$ ").partition("\n")
                yield name(page), command, output


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    doc_models.write_all(folder)
    return folder


@pytest.mark.parametrize(("page", "command", "output"), list(transcripts()))
def test_a_transcript_is_what_the_command_prints(
    models: Path,
    page: str,
    command: str,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from ggufmap.cli.main import main

    monkeypatch.chdir(models)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        main()
    said = capfd.readouterr()
    lines = (said.err + said.out).strip("\n").splitlines()
    assert missing(output.strip("\n").splitlines(), lines) == [], "\n".join(lines)


def missing(shown: list[str], printed: list[str]) -> list[str]:
    """The first lines together on the page that were not printed so; `...` stands for any lines."""
    at, free = 0, False
    for elided, group in itertools.groupby(shown, lambda line: line == "..."):
        run = list(group)
        if not elided:
            starts = range(at, len(printed) - len(run) + 1) if free else [at]
            found = next((start for start in starts if printed[start : start + len(run)] == run), None)
            if found is None:
                return run
            at = found + len(run)
        free = elided
    return [] if free else printed[at:]
