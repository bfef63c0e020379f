"""The JSON report against its published schema (docs/schema/report-1.json); additions are allowed."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from support.assets import ROOT

REPORT: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / "report-1.json").read_text(encoding="utf-8"))
LOCK: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / "lock-1.json").read_text(encoding="utf-8"))
ASSIGNMENT = {"$ref": "#/$defs/assignment", "$defs": REPORT["$defs"]}


def check_report(report: Any) -> None:
    """Raise when `report` is not of schema 1, or when its parts contradict each other."""
    jsonschema.Draft202012Validator.check_schema(REPORT)
    jsonschema.validate(report, REPORT)
    counts = report["summary"]
    for kind in ("unmapped", "missing", "phantom", "mismatched"):
        assert counts[kind] == len(report[kind]), kind
    inferred = report["inferred"] is not None
    assert report["ok"] is not (inferred or any(counts[kind] for kind in ("unmapped", "missing", "mismatched")))
    assert all(entry["inferred"] is inferred for entry in report["assignments"])
    assert counts["tensors"] == report["model"]["tensors"]
    bad = {x["tensor"] for kind in ("unmapped", "mismatched") for x in report[kind]}
    groups = [] if report["storage"] is None else report["storage"]["groups"]
    held = {(x["role"], name) for x in groups if x["storage"] == "packed" for name in x["tensors"]}
    assert held == {(x["role"], x["tensor"]) for x in report["assignments"] if x["storage"] == "packed"}
    # A dense layer says why.
    assert all(bool(x["reason"]) is (x["storage"] == "dense") for x in groups)
    # Every tensor is in exactly one class.
    assert counts["mapped"] + counts["draft"] + counts["skipped"] + len(bad) == counts["tensors"]
    assert (counts["parameters"] is None) is not report["target"]["traced"]
    remote = "://" in report["model"]["path"] and not report["model"]["path"].startswith("hf://")
    assert (report["serve"] is not None) is (report["ok"] and not remote)
    # The rank that was traced is among those whose memory is told.
    ranks = [rank["tensor_parallel"] for rank in report["memory"]]
    assert ranks == sorted(set(ranks))
    assert (report["target"]["tensor_parallel"] in ranks) is report["target"]["traced"]
    assert all(
        use["checkpoint"] < len(entry["checkpoint"]) for entry in report["assignments"] for use in entry["parameters"]
    )
