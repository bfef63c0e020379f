"""Chromium without a window, for the HTML report: the system's own, driven by playwright.

A page that is opened with `Browser.open` may ask for nothing but itself, log nothing and raise nothing; leaving the
`with` block checks it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def chromium_path() -> str | None:
    """The installed Chromium, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)


@dataclass(frozen=True)
class Browser:
    """A running Chromium."""

    chromium: Chromium

    @contextmanager
    def open(self, file: Path, *, phone: bool = False, dark: bool = False, **context: Any) -> Iterator[Page]:
        """The page `file`, drawn. Raises AssertionError at the end for requests, console messages and errors."""
        said: list[str] = []
        asked: list[str] = []
        view: dict[str, Any] = (
            {"viewport": PHONE, "is_mobile": True, "has_touch": True} if phone else {"viewport": DESKTOP}
        )
        held = self.chromium.new_context(color_scheme="dark" if dark else "light", **{**view, **context})
        page = held.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.set_default_timeout(20_000)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        try:
            yield page
        finally:
            held.close()
        assert not said, said
        assert asked == [file.as_uri()], asked


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium of its own."""
    root = os.geteuid() == 0  # its sandbox needs a user
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"] if root else [])
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
