"""Joining a plan with what vLLM did: what it left, refused or never got becomes a problem with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support import small_models as small

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Plan, Role, join_trace, resolve
from ggufmap.mapping.plan import Mismatched, Missing, ModelTrace, Parameter, ParameterUse, TraceResult, Unmapped

NORM = "model.norm.weight"
MODEL = ModelTrace(
    model_class="vllm.models.LlamaForCausalLM",
    parameters={NORM: Parameter((64,), "bfloat16", 64), "x": Parameter((2, 2), "bfloat16", 4)},
    uses={NORM: (ParameterUse(NORM),)},
    unused={},
    refused={},
    deferred={},
)
TRACE = TraceResult(vllm="0.32.0", device="cpu", target=MODEL)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    path = small.write_llama(tmp_path_factory.mktemp("join") / "m.gguf")
    with open_checkpoint(path) as checkpoint:
        yield resolve(checkpoint, find_architecture("llama", "m.gguf"))


def joined(plan: Plan, **changes: object) -> Plan:
    return join_trace(plan, replace(TRACE, target=replace(MODEL, **changes)))  # type: ignore[arg-type]


def test_a_clean_trace_changes_nothing_but_is_kept(plan: Plan) -> None:
    found = join_trace(plan, TRACE)
    assert found.ok
    assert found.trace is TRACE
    assert replace(found, trace=None) == plan


def test_what_the_model_takes_nothing_from_is_unmapped(plan: Plan) -> None:
    found = joined(plan, unused={NORM: "no parameter is written"})
    assert found.unmapped == (
        Unmapped("output_norm.weight", f"LlamaForCausalLM takes nothing from {NORM}: no parameter is written"),
    )


def test_what_a_weight_loader_refuses_is_mismatched(plan: Plan) -> None:
    found = joined(plan, refused={NORM: "shapes differ"})
    assert found.mismatched == (Mismatched("output_norm.weight", "shapes differ"),)


def test_what_is_not_filled_is_missing(plan: Plan) -> None:
    half = Parameter((64,), "bfloat16", 32, "32 of 64 elements are not written")
    found = joined(plan, parameters={NORM: half})
    assert found.missing == (Missing(NORM, Role.TARGET, "32 of 64 elements are not written"),)
    assert not found.ok
    assert found.problems() == [f"missing {NORM}: 32 of 64 elements are not written"]


def test_a_name_that_vllm_gives_to_the_draft_is_misrouted(plan: Plan) -> None:
    name = "model.layers.1.input_layernorm.weight"
    found = join_trace(plan, replace(TRACE, draft_names=frozenset({name})))
    assert found.mismatched == (
        Mismatched("blk.1.attn_norm.weight", f"{name} is routed to the target, vLLM says the draft"),
    )


def test_what_the_rows_found_stays(plan: Plan) -> None:
    before = replace(plan, unmapped=(Unmapped("a", "b"),), missing=(Missing("c", Role.TARGET, "d"),))
    found = joined(before, unused={NORM: "e"})
    assert found.unmapped[0] == Unmapped("a", "b")
    assert len(found.unmapped) == 2
    assert found.missing == before.missing
    assert found.problems()[0] == "unmapped a: b"
