"""The audit for people: it says what matters, and nothing from a file is more than text."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ggufmap.mapping import Plan
from ggufmap.mapping.plan import Unmapped
from ggufmap.report.console import print_plan


def printed(plan: Plan, *, terminal: bool = False, width: int = 160, source: str = "header") -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    print_plan(console, plan, config_source=source, assumed={"hidden_act": "silu"})
    return out.getvalue()


def test_a_good_plan(good: Plan) -> None:
    text = printed(good)
    lines = text.splitlines()
    assert lines[0].startswith("small - llama - ") and lines[0].endswith("22 tensors - 2 blocks")
    assert "LlamaForCausalLM (not traced: by the rows alone)" in text
    assert any(line.split()[:3] == ["blk.*.attn_q.weight", "2", "F32"] and "rope_rows:4" in line for line in lines)
    assert "mapped 21   draft 0   skipped 1   unmapped 0   missing 0   mismatched 0" in text
    assert any("skipped" in line and "rope_freqs.weight" in line for line in lines)
    phantom = next(line for line in lines if line.split()[:1] == ["phantom"])
    assert phantom.startswith("  phantom   14 x blk.*.attn_q.bias, blk.*.attn_k.bias, ")
    assert "hidden_act=silu" in text
    assert "from the header" in text
    assert "ok: every tensor has its place by the rows" in text
    assert lines[-1] == f"serve it: ggufmap serve {good.model.path}"


def test_a_traced_plan_shows_parameters(traced: Plan) -> None:
    text = printed(traced)
    assert "vLLM 0.32.0 on cpu: LlamaForCausalLM (traced)" in text
    assert "model.layers.*.self_attn.qkv_proj.weight [q]" in text
    assert "ok: 19 of 19 target parameters are filled, every element once" in text


def test_a_bad_plan_shows_every_problem_and_no_way_to_serve(bad: Plan) -> None:
    text = printed(bad)
    for kind, name in (
        ("missing", "model.norm.weight"),
        ("mismatch", "blk.1.attn_v.weight"),
        ("unmapped", "[red]bold[/red]"),
    ):
        assert any(line.split()[:2] == [kind, name] for line in text.splitlines()), kind
    assert "not ok: 8 problems; this file is not served" in text
    assert "serve it" not in text


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [160, 60])
def test_names_are_text_whatever_they_hold(bad: Plan, terminal: bool, width: int) -> None:
    text = printed(bad, terminal=terminal, width=width)
    joined = text.replace("\n", "")
    # The only escape sequences are rich's own styles; markup is shown, not obeyed.
    assert "\x1b]0;" not in text and "\x07" not in text and "\u202e" not in text
    assert "\x1b[31mred" not in text
    for shown in (r"\x1b[31mred\x1b[0m", "[red]bold[/red]", "[/]", r"line\nbreak", r"bell\x07", r"\u202ereversed"):
        assert shown in joined, shown
    assert r"\x1b]0;title\x07[red]name" in joined
    assert "a [bold]warning" in joined
    if not terminal:
        assert "\x1b" not in text


def test_many_problems_are_cut_short_with_a_way_to_all(good: Plan) -> None:
    many = replace(good, unmapped=tuple(Unmapped(f"x.{i}", "nobody knows") for i in range(40)))
    text = printed(many)
    assert "x.11 " in text and "x.12 " not in text
    assert "... and 28 more (all of them with --json)" in text
    assert "not ok: 40 problems" in text


def test_odd_paths_are_quoted_and_harmless(good: Plan) -> None:
    odd = replace(good, model=replace(good.model, path="/tmp/a b\x1b[31m.gguf"))
    text = printed(odd, source="/tmp/\x1b[31m/config.json")
    assert "\x1b" not in text
    assert r"serve it: ggufmap serve '/tmp/a b\x1b[31m.gguf'" in text


def test_splits_and_warnings(good: Plan) -> None:
    text = printed(replace(good, model=replace(good.model, splits=10)))
    assert " - 10 splits - " in text.splitlines()[0]
