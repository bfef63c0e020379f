"""The JSON report: schema 1, complete, and the same story as the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from support.report_schema import check_report

from ggufmap.mapping import Plan, join_trace
from ggufmap.mapping.plan import Missing, Parameter, Role
from ggufmap.report.as_json import assignments, plan_report, summary


def report(plan: Plan) -> dict[str, Any]:
    made = plan_report(plan, config_source="header", assumed={"dtype": "bfloat16"})
    text = json.dumps(made, allow_nan=False)
    found: dict[str, Any] = json.loads(text)
    check_report(found)
    return found


def test_a_good_plan(good: Plan) -> None:
    found = report(good)
    assert found["ok"] is True
    assert found["summary"] | {"phantom": 0} == {
        "tensors": 22,
        "mapped": 21,
        "draft": 0,
        "skipped": 1,
        "unmapped": 0,
        "missing": 0,
        "phantom": 0,
        "mismatched": 0,
        "parameters": None,
        "parameters_complete": None,
    }
    assert found["target"]["model_class"] == "LlamaForCausalLM"
    assert found["target"]["traced"] is False
    assert found["config"] == {"source": "header", "assumed": {"dtype": "bfloat16"}}
    assert (found["model"]["blocks"], found["model"]["draft_blocks"], found["model"]["splits"]) == (2, 0, 1)


def test_a_bad_plan_names_everything(bad: Plan) -> None:
    found = report(bad)
    assert found["ok"] is False
    assert [x["tensor"] for x in found["unmapped"]] == [x.tensor for x in bad.unmapped]
    assert len(found["unmapped"]) == 6
    assert [x["parameter"] for x in found["missing"]] == ["model.norm.weight"]
    assert [x["tensor"] for x in found["mismatched"]] == ["blk.1.attn_v.weight"]
    warning = found["warnings"][0]
    assert (warning["code"], warning["message"]) == ("W103", "a [bold]warning\x1b[1m")
    assert found["model"]["name"] == "\x1b]0;title\x07[red]name"  # data is exact; only people's text is escaped


def test_a_traced_plan_names_parameters_and_shards(traced: Plan) -> None:
    found = report(traced)
    assert found["target"]["vllm"] == "0.32.0"
    assert found["target"]["model_class"].endswith("LlamaForCausalLM")
    assert found["summary"]["parameters"] == found["summary"]["parameters_complete"] == 19
    query = next(x for x in found["assignments"] if x["tensor"] == "blk.0.attn_q.weight")
    qkv = "model.layers.0.self_attn.qkv_proj.weight"
    assert query["parameters"] == [{"name": qkv, "shard": "q", "experts": None, "checkpoint": 0}]
    assert (query["transform"], query["storage"], query["role"]) == ("rope_rows:4", "dense", "target")


def test_parameters_that_are_not_complete_are_counted(traced: Plan) -> None:
    assert traced.trace is not None
    model = traced.trace.target
    half = {**model.parameters, "model.norm.weight": Parameter((2,), "bfloat16", 1, "1 of 2 elements are not written")}
    plan = join_trace(replace(traced, trace=None), replace(traced.trace, target=replace(model, parameters=half)))
    counts = summary(plan)
    assert (counts["parameters"], counts["parameters_complete"], counts["missing"]) == (19, 18, 1)
    assert plan.missing == (Missing("model.norm.weight", Role.TARGET, "1 of 2 elements are not written"),)
    assert report(plan)["ok"] is False


def test_assignments_are_in_file_order_with_the_skipped_ones(good: Plan) -> None:
    found = assignments(good)
    assert [x["tensor"] for x in found] == list(good.model.tensors)
    skipped = found[-1]
    assert (skipped["tensor"], skipped["role"], skipped["checkpoint"]) == ("rope_freqs.weight", "skipped", [])
    assert skipped["transform"] is None and skipped["storage"] is None and skipped["reason"]
    assert all(x["reason"] is None for x in found[:-1])
    assert found[0]["shape"] == [48, 64]
