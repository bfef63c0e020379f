"""The formats of CI systems, against their own schemas and readers; names from a file act in none of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import xmlschema
from markdown_it import MarkdownIt
from support.report_schema import check_report

from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Unmapped
from ggufmap.report.as_json import plan_report
from ggufmap.report.findings import DEFAULT, SELECTABLE, Check, Kind, LockCheck, make_check
from ggufmap.report.github import github
from ggufmap.report.junit import junit
from ggufmap.report.lock import Difference
from ggufmap.report.markdown import code, markdown
from ggufmap.report.patterns import printable
from ggufmap.report.sarif import sarif

SCHEMAS = Path(__file__).resolve().parents[1] / "data" / "schemas"
JUNIT = xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")
SARIF = jsonschema.Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text()))

NASTY = (
    "\x00\x01\x1b[31m\x7f\ufffe\uffff\ud800",
    "<b>&amp;]]></failure>",
    "`` ` ```\n# title\n| a | b |",
    "::error::x\r\n::stop-commands::y%0A",
    "@someone #1 http://example.org ![i](x) **b** <script>",
    "`",
    " ",
    "x" * 5000,
)


def report(plan: Plan) -> dict[str, Any]:
    return plan_report(plan, config_source="header", assumed={})


@pytest.fixture
def passed(good: Plan) -> Check:
    return make_check(report(good), SELECTABLE)


@pytest.fixture
def failed(bad: Plan) -> Check:
    """Every kind of problem, hostile names, a lock that differs; warnings do not fail."""
    found = report(bad)
    found["unmapped"] += [{"tensor": name, "reason": f"no row for {name}"} for name in NASTY]
    lock = LockCheck(
        "locks/a lock.json",
        "0.31.0",
        (
            Difference("blk.0.a", "parameter", "x", "y"),
            Difference("blk.1.a", "parameter", "x", "y"),
            *(Difference(name, "parameter", name, name[::-1]) for name in NASTY),
        ),
        ("made with vLLM 0.31.0, this is vLLM 0.32.0",),
    )
    return make_check(found, DEFAULT, lock)


# JUnit.


def cases(check: Check) -> tuple[ET.Element, dict[str, list[ET.Element]]]:
    text = junit(check)
    JUNIT.validate(text)
    root = ET.fromstring(text)
    suites = {suite.get("name", ""): list(suite) for suite in root}
    for suite in root:
        assert int(suite.get("tests", "")) == len(suite)
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped"))
    assert int(root.get("tests", "")) == len(root.findall("testsuite/testcase"))
    assert int(root.get("failures", "")) == len(root.findall("testsuite/testcase/failure"))
    return root, suites


def test_junit_of_a_check_that_passes(passed: Check) -> None:
    root, suites = cases(passed)
    assert list(suites) == ["unmapped", "missing", "mismatched", "phantom-mtp", "warning", "inferred"]
    assert all(len(found) == 1 and len(found[0]) == 0 for found in suites.values())
    assert root.get("failures") == "0"


def test_junit_of_a_check_that_fails(failed: Check) -> None:
    root, suites = cases(failed)
    assert int(root.get("failures", "")) == sum(x.fails for x in failed.findings) > 10
    (warning,) = suites["warning"]
    skipped = warning.find("skipped")
    assert skipped is not None and skipped.get("message", "").startswith("not in --fail-on: W103")
    first = suites["lock"][0].find("failure")
    assert first is not None and first.get("message") == "2 x blk.*.a: parameter x -> y"
    assert first.text == "parameter x -> y\nblk.0.a\nblk.1.a"
    names = {case.get("name") for case in suites["unmapped"]}
    assert {printable(name) for name in NASTY} <= names


def test_junit_lists_at_most_a_thousand_names(good: Plan) -> None:
    found = report(good)
    found["unmapped"] = [{"tensor": f"blk.{n}.x", "reason": "no row"} for n in range(18_288)]
    text = junit(make_check(found, DEFAULT))
    JUNIT.validate(text)
    assert 'message="18288 x blk.*.x: no row"' in text and "... and 17288 more" in text
    assert text.count("\n") < 1100


# SARIF.


def results(check: Check) -> list[dict[str, Any]]:
    log = sarif(check, exit_code=0 if check.ok else 1)
    SARIF.validate(log)
    json.dumps(log).encode("ascii")
    (run,) = log["runs"]
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": 0 if check.ok else 1}]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    return list(run["results"])


def test_sarif_of_a_check_that_passes(passed: Check) -> None:
    assert results(passed) == []


def test_sarif_of_a_check_that_fails(failed: Check) -> None:
    found = results(failed)
    assert len(found) == len(failed.findings)
    assert {x["ruleId"]: x["level"] for x in found} == {
        "unmapped": "error",
        "missing": "error",
        "mismatched": "error",
        "warning": "warning",
        "lock": "error",
    }
    places = {x["ruleId"]: x["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for x in found}
    assert places["lock"] == "locks/a%20lock.json"
    assert places["unmapped"] == f"file://{failed.report['model']['path']}"
    (moved,) = [x for x in found if x["message"]["text"].startswith("2 x blk.*.a")]
    names = [place["fullyQualifiedName"] for place in moved["locations"][0]["logicalLocations"]]
    assert names == ["blk.0.a", "blk.1.a"]


def test_sarif_knows_its_findings_again(failed: Check) -> None:
    prints = [[x["partialFingerprints"]["ggufmap/v1"] for x in results(failed)] for _ in range(2)]
    assert prints[0] == prints[1] and len(set(prints[0])) == len(prints[0])


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b/%41#?.gguf", "a%20b/%2541%23%3F.gguf"),
        ("c:d.gguf", "c%3Ad.gguf"),  # no scheme
        ("hf://org/repo/m.gguf", "hf://org/repo/m.gguf"),
        ("\udcff.gguf", "%FF.gguf"),
    ],
)
def test_sarif_paths_are_uris(failed: Check, path: str, uri: str) -> None:
    moved = replace(failed, report={**failed.report, "model": {**failed.report["model"], "path": path}})
    found = [x["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for x in results(moved)]
    assert found[0] == uri and unquote(uri, errors="surrogateescape") == path


# Markdown.


def acts(text: str) -> tuple[list[str], list[str]]:
    """(contents of code spans, types of everything else that is no plain text) as a CommonMark reader sees them."""
    spans, others = [], []
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        for child in token.children or ():
            if child.type == "code_inline":
                spans.append(child.content)
            elif child.type not in ("text", "softbreak"):
                others.append(child.type)
        if token.type == "html_block":
            others.append(token.content.strip())
    return spans, others


@pytest.mark.parametrize("name", [*NASTY, "", "``", " `a` ", "a|b\\"])
def test_a_name_is_one_code_span(name: str) -> None:
    spans, others = acts(code(name))
    shown = printable(name)
    shown = shown if len(shown) <= 500 else shown[:500] + " ..."
    assert [span.strip() for span in spans] == [shown.strip()]
    assert others == []


def test_markdown_of_a_check_that_passes(passed: Check) -> None:
    text = markdown(passed)
    assert text.startswith("### ✅ ggufmap check: `small`\n")
    assert "| 22 | 21 | 0 | 1 | 0 | 0 | 0 |" in text
    assert acts(text)[0][-1] == passed.verdict


def test_markdown_of_a_check_that_fails(failed: Check) -> None:
    text = markdown(failed)
    spans, others = acts(text)
    assert text.startswith("### ❌ ggufmap check: ")
    assert {"2 x blk.*.a", "blk.0.a", "made with vLLM 0.31.0, this is vLLM 0.32.0", failed.verdict} <= set(spans)
    assert set(others) <= {"strong_open", "strong_close", "html_inline"} | {x for x in others if x.startswith("<")}
    html = re.findall(r"<[^>]*>", "".join(x for x in others if x.startswith("<")))
    assert set(html) <= {"<details>", "<summary>", "</summary>", "</details>"}
    for name in NASTY[:5]:
        assert printable(name) in spans


def test_markdown_fits_a_comment(good: Plan) -> None:
    found = report(good)
    found["unmapped"] = [{"tensor": f"name{n} {'x' * 300}", "reason": "y" * 400} for n in range(5000)]
    text = markdown(make_check(found, DEFAULT))
    assert 40_000 < len(text) < 65_000
    assert re.search(r"- \.\.\. and \d{4} more", text)


# GitHub.


def commands(check: Check) -> list[tuple[str, dict[str, str], str]]:
    """Lines as the runner reads them (actions/runner, ActionCommand): level, properties, message."""
    found = []
    for line in github(check).splitlines():
        parsed = re.fullmatch(r"::(error|warning|notice) ([^:]*)::(.*)", line)
        assert parsed, line
        unescaped = [
            re.sub("%(25|0D|0A|3A|2C)", lambda m: bytes.fromhex(m[1]).decode(), part)
            for pair in parsed[2].split(",")
            for part in pair.split("=", 1)
        ]
        message = re.sub("%(25|0D|0A)", lambda m: bytes.fromhex(m[1]).decode(), parsed[3])
        found.append((parsed[1], dict(zip(unescaped[::2], unescaped[1::2], strict=True)), message))
    return found


def test_github_of_a_check_that_passes(passed: Check) -> None:
    assert commands(passed) == [("notice", {"title": "ggufmap check"}, passed.verdict)]


def test_github_of_a_check_that_fails(failed: Check) -> None:
    found = commands(failed)
    assert len(found) == len(failed.findings) + 2
    assert ("error", {"title": "ggufmap: lock", "file": "locks/a lock.json"}, "2 x blk.*.a: parameter x -> y") in found
    assert found[-1] == ("error", {"title": "ggufmap check"}, failed.verdict)
    assert found[-2] == ("notice", {"title": "ggufmap check"}, "made with vLLM 0.31.0, this is vLLM 0.32.0")
    assert [level for level, properties, _ in found if properties["title"] == "ggufmap: warning"] == ["warning"]
    name = printable(NASTY[3])
    assert ("error", {"title": "ggufmap: unmapped"}, f"{name}: no row for {name}") in found


def test_a_lock_s_name_cannot_end_a_property(failed: Check) -> None:
    assert failed.lock is not None
    lock = replace(failed.lock, file="a,b::c=%2C.json")
    found = commands(replace(failed, lock=lock))
    assert {properties["file"] for _, properties, _ in found if "file" in properties} == {"a,b::c=%2C.json"}


# JSON.


def test_the_check_is_part_of_the_report(passed: Check, failed: Check, bad: Plan) -> None:
    check_report(passed.as_json())
    assert passed.as_json()["check"] == {
        "ok": True,
        "fail_on": [*map(str, SELECTABLE), "inferred"],
        "findings": [],
        "lock": None,
    }
    lock = failed.lock
    found = make_check(report(bad), DEFAULT, lock).as_json()
    check_report(found)
    assert found["check"]["ok"] is found["ok"] is False
    assert found["check"]["lock"]["vllm"] == "0.31.0"
    assert found["check"]["lock"]["differences"][0] == {
        "subject": "blk.0.a",
        "change": "moved",
        "what": "parameter",
        "old": "x",
        "new": "y",
    }
    assert {x["kind"] for x in found["check"]["findings"]} == {"unmapped", "missing", "mismatched", "warning", "lock"}


def test_unmapped_of_a_plan_that_passes_is_shown_all_the_same(good: Plan) -> None:
    check = make_check(report(replace(good, unmapped=(Unmapped("rope_freqs.weight", "no row"),))), (Kind.MISSING,))
    assert check.ok
    assert commands(check)[0][0] == "warning"
    assert results(check)[0]["level"] == "note"
    assert "⚠️ **unmapped** `rope_freqs.weight`: `no row`" in markdown(check)
