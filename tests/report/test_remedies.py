"""Every cause that the code can give has a remedy of its own, every warning code too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.assets import ROOT

from ggufmap.report.remedies import remedy, warning_remedy

REASONS = [
    ("unmapped", "block 90 is beyond the 79 blocks of this model", "block_count"),
    ("unmapped", "block 3 is not of a kind that has blk.{bid}.ffn_up.weight", "lack a kind of block"),
    ("unmapped", "a mixture-of-experts tensor; the llama rows are for dense models", "dense"),
    ("unmapped", "no row for blk.{bid}.odd (nearest: blk.{bid}.ode)", "nearest name"),
    ("unmapped", "LlamaForCausalLM takes nothing from model.x: not used", "no use for it"),
    ("missing", "blk.3.attn_q.weight is not in the file", "all splits"),
    ("missing", "a, b is in the file, c is not", "Half"),
    ("missing", "12 of 24 elements are not written", "parameter that no tensor fills"),
    ("mismatched", "ggml type unknown_200 (id 200): this id is unknown here", "Re-quantise"),
    ("mismatched", "shape (0, 4) holds no values", "broken"),
    ("mismatched", "shape (3, 4): not a multiple of 2 (transform rope_rows:2)", "contradicts the header"),
    ("mismatched", "lm_head.weight is also made of output.weight", "same destination"),
    ("mismatched", "model.layers.3.x is routed to the draft, vLLM says the target", "which blocks are the draft"),
    ("mismatched", "RuntimeError: The size of tensor a (3) must match", "weight loader refuses"),
    ("inferred", "these are gguf-py's names", "round trip"),
]


@pytest.mark.parametrize(("kind", "reason", "expected"), REASONS)
def test_remedies(kind: str, reason: str, expected: str) -> None:
    assert expected in remedy(kind, reason)


def test_no_two_causes_share_a_remedy() -> None:
    assert len({remedy(kind, reason) for kind, reason, _ in REASONS}) == len(REASONS)


def test_the_reasons_are_the_code_s() -> None:
    """A reason that is worded anew needs its remedy to follow."""
    sources = "".join(
        path.read_text(encoding="utf-8") for path in Path(ROOT, "ggufmap").rglob("*.py") if path.parent.name != "report"
    )
    for words in (
        "is beyond the",
        "is not of a kind that has",
        "a mixture-of-experts tensor",
        "no row for ",
        " takes nothing from ",
        " is not in the file",
        " is in the file, ",
        "elements are not written",
        "ggml type {",
        "holds no values",
        "is also made of",
        "is routed to the",
    ):
        assert words in sources, words


def test_every_warning_has_a_remedy() -> None:
    codes = set(re.findall(r"^\| (W\d{3}) \|", (ROOT / "docs" / "audit.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert len(codes) >= 11
    assert [code for code in sorted(codes) if not warning_remedy(code)] == []
    assert warning_remedy("W999") == ""
