"""Findings: what of a report fails a check, and how it is grouped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ggufmap.mapping import Plan, Role
from ggufmap.mapping.plan import Inferred, Missing, Unmapped, Warned
from ggufmap.report.as_json import plan_report
from ggufmap.report.findings import DEFAULT, SELECTABLE, Kind, LockCheck, make_check, parse_fail_on
from ggufmap.report.lock import Difference


def report(plan: Plan) -> dict[str, Any]:
    return plan_report(plan, config_source="header", assumed={})


def test_a_good_plan_passes_everything(good: Plan) -> None:
    check = make_check(report(good), SELECTABLE)
    assert check.ok and check.findings == ()
    assert check.verdict == "check passed: 22 tensors, by the rows alone"


@pytest.mark.parametrize(
    ("fail_on", "failed"),
    [
        (DEFAULT, {Kind.UNMAPPED: 6, Kind.MISSING: 1, Kind.MISMATCHED: 1}),
        ((Kind.MISSING,), {Kind.MISSING: 1}),
        ((Kind.WARNING,), {Kind.WARNING: 1}),
        ((Kind.PHANTOM_MTP,), {}),
        ((), {}),
    ],
)
def test_only_what_is_asked_for_fails(bad: Plan, fail_on: tuple[Kind, ...], failed: dict[Kind, int]) -> None:
    check = make_check(report(bad), fail_on)
    assert check.failed == failed
    assert check.ok is not bool(failed)
    counts = {kind: sum(len(x.names) for x in check.findings if x.kind is kind) for kind in Kind}
    assert {kind: count for kind, count in counts.items() if count} == {
        Kind.UNMAPPED: 6,
        Kind.MISSING: 1,
        Kind.MISMATCHED: 1,
        Kind.WARNING: 1,
    }


def test_names_of_one_pattern_and_reason_are_one_finding(good: Plan) -> None:
    stacks = [Unmapped(f"blk.{bid}.ffn_gate_exps.weight", f"no place for blk.{bid}.x") for bid in range(75)]
    other = Unmapped("blk.3.ffn_gate_exps.weight", "another reason")
    check = make_check(_with(good, (*stacks, other)), DEFAULT)
    assert [(x.title, x.reason, len(x.names)) for x in check.findings] == [
        ("75 x blk.*.ffn_gate_exps.weight", "no place for blk.*.x", 75),
        ("blk.3.ffn_gate_exps.weight", "another reason", 1),
    ]
    assert check.verdict == "check failed: 76 unmapped"


def _with(plan: Plan, unmapped: tuple[Unmapped, ...]) -> dict[str, Any]:
    return {**report(plan), "unmapped": [{"tensor": x.tensor, "reason": x.reason} for x in unmapped]}


def test_a_promised_draft_is_a_phantom_and_a_warning(good: Plan) -> None:
    found = report(replace(good, warnings=(Warned("W107", "phantom MTP: ..."), Warned("W104", "64 bytes"))))
    assert make_check(found, DEFAULT).ok
    assert make_check(found, (Kind.PHANTOM_MTP,)).failed == {Kind.PHANTOM_MTP: 1}
    assert make_check(found, (Kind.WARNING,)).failed == {Kind.PHANTOM_MTP: 1, Kind.WARNING: 1}


def test_a_part_of_the_draft_that_is_not_shared_is_a_phantom_too(good: Plan) -> None:
    missing = (
        Missing("model.layers.3.enorm.weight", Role.DRAFT, "nothing"),
        Missing("lm_head", Role.TARGET, "nothing"),
    )
    found = report(replace(good, missing=missing))
    assert make_check(found, (Kind.PHANTOM_MTP,)).failed == {Kind.MISSING: 1}
    assert make_check(found, (Kind.MISSING,)).failed == {Kind.MISSING: 2}
    assert make_check(found, ()).ok


def test_inferred_rows_always_fail(good: Plan) -> None:
    found = make_check(report(replace(good, inferred=Inferred("by names", "rows"))), ())
    assert found.failed == {Kind.INFERRED: 1}


def test_differences_fail_unless_the_lock_was_written(good: Plan) -> None:
    differences = (Difference("blk.0.a", "parameter", "x", "y"), Difference("blk.1.a", "parameter", "x", "y"))
    found = make_check(report(good), (), LockCheck("l.json", "0.32.0", differences))
    assert found.failed == {Kind.LOCK: 2}
    assert [(x.title, x.reason) for x in found.findings] == [("2 x blk.*.a", "parameter x -> y")]
    assert make_check(report(good), (), LockCheck("l.json", "0.32.0", differences, updated=True)).ok


def test_fail_on_is_a_list_of_known_words() -> None:
    assert parse_fail_on(" missing, unmapped,missing") == (Kind.UNMAPPED, Kind.MISSING)
    assert parse_fail_on("") == ()
    with pytest.raises(ValueError, match=r"^lock, Missing$"):
        parse_fail_on("lock,missing,Missing")
