"""The HTML page as text: self-contained, exact, and nothing of a file is markup in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support import small_models as small
from support.reports import HOSTILE, Report, glm_5_report, hostile_report, long_report, offline_report

from ggufmap.report.html import html_page
from ggufmap.report.page_data import page_data


@pytest.fixture
def good_report(tmp_path: Path) -> Report:
    return offline_report(small.write_llama(tmp_path / "m.gguf"))


class Page(HTMLParser):
    """The elements of a page: tag, attributes, and the text right inside."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.comments: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.elements[-1][2].append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, "".join(text)) for name, attributes, text in self.elements if name == tag]


def data_of(page: str) -> Any:
    return json.loads(Page(page).all("script")[0][1])


def sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_needs_nothing_else(good_report: Report) -> None:
    page = html_page(good_report)
    found = Page(page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    for tag, attributes, _ in found.elements:
        assert not {"src", "data", "action", "srcset", "style"} & attributes.keys(), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert attributes.get("href", "#") in {"#", *(f"#{a.get('id')}" for _, a, _ in found.elements)}
    assert found.all("link") == [] and found.comments == []


def test_the_policy_allows_this_script_and_this_style_and_nothing_more(good_report: Report) -> None:
    found = Page(html_page(good_report))
    policy = next(a["content"] for a, _ in found.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    (data, _), (_, script) = found.all("script")
    ((_, style),) = found.all("style")
    assert data == {"type": "application/json", "id": "data"}
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'{sha256(script)}'",
        "style-src": f"'{sha256(style)}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_the_data_are_whole_and_ascii(good_report: Report) -> None:
    page = html_page(good_report)
    assert data_of(page) == page_data(good_report)
    assert Page(page).all("script")[0][1].isascii()


def test_hostile_names_are_data(good_report: Report) -> None:
    """The elements of the page are those of a page without them, and every name is there, exactly."""
    hostile = hostile_report(good_report)
    page, plain = html_page(hostile), html_page(good_report)
    assert [e[:2] for e in Page(page).elements if e[0] != "meta"] == [
        e[:2] for e in Page(plain).elements if e[0] != "meta"
    ]
    assert Page(page).all("script")[1] == Page(plain).all("script")[1]
    data = data_of(page)
    names = {tensor[0] for tensor in data["tensors"]}
    assert names >= set(HOSTILE)
    assert data["name"] == HOSTILE[1]
    assert not set("<>&") & set(Page(page).all("script")[0][1])


def test_sizes_of_pages(gemma: Path, good_report: Report, tmp_path: Path) -> None:
    """A page of a real model is far below 1 MB; experts are written as runs, not 57,600 times."""
    assert len(html_page(offline_report(gemma))) < 200_000
    glm = glm_5_report(tmp_path / "glm")
    page = html_page(glm)
    assert len({name for entry in glm["assignments"] for name in entry["checkpoint"]}) == 59_870
    assert len(page) < 400_000 < len(json.dumps(glm)) / 5
    assert len(html_page(long_report(good_report, 60_000))) < 10_000_000


def test_the_same_report_gives_the_same_page(good_report: Report) -> None:
    assert html_page(good_report) == html_page(json.loads(json.dumps(good_report)))
