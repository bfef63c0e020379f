"""The block x part matrix: kinds of block, holes, odd types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import small_models as small
from support.reports import glm_5_report, offline_report

from ggufmap.report.page_blocks import Place, matrix, place
from ggufmap.report.page_data import page_data

CLEAN: dict[str, Any] = {"missing": [], "phantom": []}


def block(bid: int, parts: str, types: str | None = None, role: str = "target") -> list[dict[str, Any]]:
    kinds = (types or "Q4_K " * len(parts.split())).split()
    named = zip(parts.split(), kinds, strict=True)
    return [{"tensor": f"blk.{bid}.{part}.weight", "ggml_type": kind, "bytes": 9, "role": role} for part, kind in named]


def made(*blocks: list[dict[str, Any]], report: dict[str, Any] = CLEAN) -> dict[str, Any]:
    return matrix([entry for one in blocks for entry in one], report)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.3.attn_q.weight", Place("blk", 3, "attn_q")),
        ("blk.3.attn_q.bias", Place("blk", 3, "attn_q")),
        ("v.blk.0.ln1.weight", Place("v.blk", 0, "ln1")),
        ("blk.0.ssm_a", Place("blk", 0, "ssm_a")),
        ("blk.78.nextn.eh_proj.weight", Place("blk", 78, "nextn.eh_proj")),
        ("blk.3..weight", Place("blk", 3, ".weight")),
        ("output.weight", None),
        ("blk.x.attn_q.weight", None),
        ("blk.9999999999.a", None),
        ("blk.3.", None),
    ],
)
def test_places(name: str, expected: Place | None) -> None:
    assert place(name) == expected


def test_kinds_are_blocks_with_the_same_parts() -> None:
    found = made(block(0, "a b"), block(1, "a b"), block(2, "a c"), block(3, "a c"), block(4, "a c", role="draft"))
    assert [row[3] for row in found["rows"]] == [0, 0, 1, 1, 2]
    assert [row[2] for row in found["rows"]] == [False, False, False, False, True]
    assert found["parts"] == ["a", "b", "c"]
    assert found["holes"] == [] and found["odd"] == []


def test_a_block_that_lacks_what_its_kind_has_is_a_hole() -> None:
    found = made(*(block(bid, "a b" if bid == 5 else "a b c") for bid in range(12)))
    assert found["holes"] == [[5, 2, "11 of 12 blocks of this kind have it", False]]
    assert {row[3] for row in found["rows"]} == {0}


def test_a_block_with_one_part_too_many_makes_no_holes_in_the_others() -> None:
    found = made(*(block(bid, "a b odd" if bid == 5 else "a b") for bid in range(12)))
    assert found["holes"] == [] and {row[3] for row in found["rows"]} == {0}


def test_blocks_that_take_turns_have_no_holes() -> None:
    """An indexer in every fourth block, as GLM-5.2 has it, is a kind of its own."""
    found = made(*(block(bid, "a b idx" if bid % 4 == 0 else "a b") for bid in range(20)))
    assert found["holes"] == [] and {row[3] for row in found["rows"]} == {0, 1}


def test_what_the_plan_misses_is_a_hole_with_its_reason(tmp_path: Path) -> None:
    """By the resolver's own words, also for a part that no block has."""
    tensors = small.without(
        small.llama_tensors(3), "blk.1.attn_k.weight", *(f"blk.{i}.ffn_up.weight" for i in range(3))
    )
    data = page_data(offline_report(small.write_llama(tmp_path / "m.gguf", small.llama_metadata(3), tensors)))["blocks"]
    parts = data["parts"]
    holes = [(row, parts[part], why, bad) for row, part, why, bad in data["holes"]]
    assert (1, "attn_k", "blk.1.attn_k.weight is not in the file", True) in holes
    assert sorted((row, part) for row, part, _, bad in holes if bad) == [
        (0, "ffn_up"),
        (1, "attn_k"),
        (1, "ffn_up"),
        (2, "ffn_up"),
    ]


def test_half_of_a_pair_is_a_hole() -> None:
    reason = "blk.2.attn_k_b.weight is in the file, blk.2.attn_v_b.weight is not"
    report = {"missing": [{"parameter": "x", "reason": reason}], "phantom": []}
    found = made(block(2, "attn_k_b"), report=report)
    assert found["holes"] == [[0, 1, reason, True]]


def test_a_phantom_s_reason_is_told_with_the_hole() -> None:
    phantom = {"tensor": "blk.3.c.weight", "checkpoint": ["x"], "reason": "optional: tied"}
    found = made(*(block(b, "a" if b == 3 else "a c") for b in range(8)), report={"missing": [], "phantom": [phantom]})
    assert found["holes"] == [[3, 1, "7 of 8 blocks of this kind have it; optional: tied", False]]


def test_a_rare_type_is_odd() -> None:
    found = made(*(block(bid, "a b", "Q4_K F32" if bid != 7 else "Q6_K F32") for bid in range(10)))
    assert found["odd"] == [[7, 0, "9 x Q4_K"]]


@pytest.mark.parametrize("types", ["Q6_K Q4_K Q4_K", "Q6_K Q6_K Q4_K Q4_K", "Q4_K Q5_K Q6_K Q8_0"])
def test_types_that_are_mixed_or_few_are_not_odd(types: str) -> None:
    assert made(*(block(bid, "a", kind) for bid, kind in enumerate(types.split())))["odd"] == []


def test_the_largest_tensor_of_a_part_gives_its_type() -> None:
    entries = [*block(0, "a"), {"tensor": "blk.0.a.bias", "ggml_type": "F32", "bytes": 3, "role": "target"}]
    assert made(entries, *(block(bid, "a") for bid in range(1, 5)))["odd"] == []


def test_real_shapes(tmp_path: Path, gemma: Path) -> None:
    """GLM-5's three kinds: dense, experts, draft. Nothing odd in it, nor in a real Q4_K_M with its mix of types."""
    found = page_data(glm_5_report(tmp_path))["blocks"]
    assert [row[3] for row in found["rows"]] == [0] * 3 + [1] * 75 + [2]
    assert len(found["parts"]) == 29 and found["holes"] == [] and found["odd"] == []
    found = page_data(offline_report(gemma))["blocks"]
    assert len(found["rows"]) == 18 and {row[3] for row in found["rows"]} == {0} and found["holes"] == []


def test_ten_thousand_kinds_of_block_take_no_time() -> None:
    found = made(*(block(bid, f"a b{bid} c{bid % 7}") for bid in range(10_000)))
    assert len(found["rows"]) == 10_000 and found["holes"] == []
