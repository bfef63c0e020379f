"""Lock files: what they say, how they read, and what a comparison finds."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from support.report_schema import LOCK

from ggufmap.errors import FileError
from ggufmap.mapping import Plan
from ggufmap.report.lock import Lock, compare, dump_lock, folded, make_lock, read_lock

Q = "blk.0.attn_q.weight"


def changed(lock: Lock, tensor: str, **fields: Any) -> Lock:
    found = copy.deepcopy(lock)
    found["tensors"][tensor].update(fields)
    return found


def test_a_lock_is_of_its_schema_and_reads_back(traced: Plan, bad: Plan) -> None:
    for plan in (traced, bad):
        lock = make_lock(plan)
        text = dump_lock(lock)
        jsonschema.Draft202012Validator(LOCK).validate(json.loads(text))
        assert read_lock(text, "x") == lock
        assert dump_lock(read_lock(text, "x")) == text
        assert compare(lock, read_lock(text, "x")) == []
        assert lock["tensors"].keys() == plan.model.tensors.keys()


def test_what_a_lock_says_of_a_tensor(traced: Plan) -> None:
    lines = dump_lock(make_lock(traced)).splitlines()
    (line,) = [line for line in lines if f'"{Q}"' in line]
    assert json.loads(f"{{{line.rstrip(',')}}}") == {
        Q: {
            "type": "F32",
            "shape": [64, 64],
            "transform": "rope_rows:4",
            "checkpoint": ["model.layers.0.self_attn.q_proj.weight"],
            "parameters": ["model.layers.0.self_attn.qkv_proj.weight[q]"],
        }
    }
    assert sum('{"type"' in line for line in lines) == len(traced.model.tensors)
    assert '"rope_freqs.weight": {"type": "F32", "shape": [8], "role": "skipped"}' in lines[-4]


def test_every_tensor_is_one_line_whatever_its_name(bad: Plan) -> None:
    text = dump_lock(make_lock(bad))
    assert text.isascii() and text.count("\n") == len(bad.model.tensors) + 14
    unmapped = json.loads(text)["tensors"]["line\nbreak"]
    assert unmapped == {"type": "F32", "shape": [4], "role": "unmapped"}


def test_blocks_are_in_the_order_of_their_numbers(good: Plan) -> None:
    facts = good.model.tensors["output.weight"]
    names = ("blk.10.x", "blk.2.x", "blk.02.x", "blk.2.a", "a", "blk.2", f"blk.{'9' * 5000}.x")
    plan = replace(good, assignments=(), skipped=(), model=replace(good.model, tensors=dict.fromkeys(names, facts)))
    found = list(make_lock(plan)["tensors"])
    assert found == ["a", "blk.2", "blk.2.a", "blk.02.x", "blk.2.x", "blk.10.x", f"blk.{'9' * 5000}.x"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"e.{i}.w" for i in range(256)], ["e.{0..255}.w"]),
        (["e.0.w"], ["e.0.w"]),
        (["e.3.w", "e.1.w", "e.2.w", "e.9.w"], ["e.{3,1..2,9}.w"]),  # not sorted: the order of experts counts
        ([f"l.3.e.{i}.{x}" for i in range(2) for x in ("gate", "up")], ["l.3.e.{0..1}.gate", "l.3.e.{0..1}.up"]),
        (["l.0.e.0", "l.1.e.1"], ["l.0.e.0", "l.1.e.1"]),  # two numbers: not a list of experts
        (["k_proj", "v_proj"], ["k_proj", "v_proj"]),
        ([], []),
    ],
)
def test_experts_are_folded(names: list[str], expected: list[str]) -> None:
    assert folded(names) == expected


# Comparison.


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"type": "Q8_0"}, ["ggml type Q8_0 -> F32"]),
        ({"shape": [64, 32]}, ["shape 64x32 -> 64x64"]),
        ({"transform": "copy"}, ["transform copy -> rope_rows:4"]),
        ({"role": "draft"}, ["role draft -> target"]),
        (
            {"parameters": ["model.layers.0.self_attn.q_proj.weight"]},
            ["parameter model.layers.0.self_attn.q_proj.weight -> model.layers.0.self_attn.qkv_proj.weight[q]"],
        ),
        ({"parameters": []}, ["parameter none -> model.layers.0.self_attn.qkv_proj.weight[q]"]),
        ({"storage": "packed"}, ["storage packed -> dense"]),
    ],
)
def test_a_difference_says_what_was_and_what_is(traced: Plan, fields: dict[str, Any], texts: list[str]) -> None:
    new = make_lock(traced)
    found = compare(changed(new, Q, **fields), new)
    assert [(x.subject, x.change, x.text) for x in found] == [(Q, "moved", text) for text in texts]


def test_tensors_come_and_go(traced: Plan) -> None:
    new = make_lock(traced)
    old = copy.deepcopy(new)
    old["tensors"]["blk.0.gone.weight"] = {"type": "F16", "shape": [2, 3], "parameters": ["a.b[q]"]}
    del old["tensors"][Q]
    assert [(x.subject, x.change, x.text) for x in compare(old, new)] == [
        (Q, "added", "new: F32 64x64 -> model.layers.0.self_attn.qkv_proj.weight[q]"),
        ("blk.0.gone.weight", "removed", "gone: F16 2x3 -> a.b[q]"),
    ]


def test_the_target_counts_but_not_the_version_of_vllm(traced: Plan) -> None:
    new = make_lock(traced)
    old = {**new, "target": {**new["target"], "vllm": "0.31.0"}}
    assert compare(old, new) == []
    old["target"] |= {"device": "sm_100", "tensor_parallel": 8, "draft_class": "x.Draft"}
    assert [x.text for x in compare(old, new)] == [
        "device sm_100 -> cpu",
        "tensor parallel 8 -> 1",
        "draft class x.Draft -> none",
    ]
    old["architecture"] = "qwen3"
    assert compare(old, new)[0].text == "architecture qwen3 -> llama"


def test_without_a_trace_names_are_compared_and_parameters_are_not(good: Plan, traced: Plan) -> None:
    offline, online = make_lock(good), make_lock(traced)
    assert compare(online, offline) == compare(offline, online) == []
    moved = changed(online, Q, checkpoint=["elsewhere"])
    assert [x.text for x in compare(moved, offline)] == [
        "checkpoint tensor elsewhere -> model.layers.0.self_attn.q_proj.weight"
    ]


# Files that are no lock.


def tampered(lock: Lock, **changes: Any) -> str:
    return json.dumps({**lock, **changes})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not a lock file: Expecting value"),
        ("[" * 100_000, "not a lock file"),
        ("[]", "has no lock number"),
        ('{"tensors": {}}', "has no lock number"),
        ('{"lock": 2}', "lock number 2, this ggufmap reads 1"),
        ('{"lock": 1}', "architecture, target or tensors is missing"),
        ('{"lock": 1, "lock": 1}', "'lock' is there twice"),
        ('<<<<<<< HEAD\n{"lock": 1}', "not a lock file"),
        ('{"lock": 1, "architecture": "a", "target": {"vllm": []}, "tensors": {}}', "target holds a value"),
        ('{"lock": 1, "architecture": "a", "target": {}, "tensors": []}', "architecture, target or tensors"),
        ('{"lock": 1, "architecture": "a", "target": {}, "tensors": {"x": {}}}', "entry of 'x' has no type"),
        (
            '{"lock": 1, "architecture": "a", "target": {}, "tensors": {"x": {"type": 1, "shape": []}}}',
            "type of 'x' is of another type",
        ),
        (
            '{"lock": 1, "architecture": "a", "target": {}, "tensors": {"x": {"type": "F", "shape": "4"}}}',
            "shape of 'x' is of another type",
        ),
        (
            '{"lock": 1, "architecture": "a", "target": {}, "tensors": {"x": {"type": "F", "shape": [], "role": [1]}}}',
            "role of 'x' is of another type",
        ),
    ],
)
def test_what_is_no_lock_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(FileError, match=r"l\.json: ") as e:
        read_lock(text, "l.json")
    assert complaint in e.value.message
    assert e.value.hint
