"""The HTML report: one page with all of its data, style and script in it, which asks nothing of the network.

What comes from a file stands in the page as JSON text with `<`, `>` and `&` escaped, and the script puts it on the
page as text nodes only. A content security policy allows this one script and this one style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from ggufmap.report.page_data import page_data

_SCRIPTS = ("base.js", "treemap.js", "matrix.js", "table.js", "sections.js", "main.js")
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


def html_page(report: Mapping[str, Any]) -> str:
    """The page for `report` (schema 1, as_json.py)."""
    style = _part("page.css")
    script = "(() => {\n'use strict';\n" + "".join(_part(name) for name in _SCRIPTS) + "})();\n"
    policy = _POLICY.format(script=_hash(script), style=_hash(style))
    page = _part("page.html")
    # The data last: nothing in it is taken for a place of another part.
    for name, text in (("POLICY", policy), ("STYLE", style), ("SCRIPT", script), ("DATA", _json(page_data(report)))):
        before, found, after = page.partition(f"{{{{{name}}}}}")
        assert found, name
        page = before + text + after
    return page


def _part(name: str) -> str:
    return files("ggufmap.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON in ASCII that can stand between script tags: no character of it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
