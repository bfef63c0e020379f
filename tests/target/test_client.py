"""A real trace: vLLM's own class for a tiny model, in a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.converter import TinyFactory

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import MissingDependencyError, UsageError
from ggufmap.mapping import Plan, Role, join_trace, resolve
from ggufmap.mapping.plan import ParameterUse
from ggufmap.modeldir.config import ModelConfig, config_from_header
from ggufmap.target import compat
from ggufmap.target.client import trace, vllm_available
from ggufmap.target.devices import World, parse_device


def planned(path: Path) -> tuple[Plan, ModelConfig]:
    with open_checkpoint(path) as checkpoint:
        architecture = find_architecture(checkpoint.architecture, str(path))
        return resolve(checkpoint, architecture), config_from_header(checkpoint, architecture)


def spoilt(plan: Plan) -> Plan:
    """A tensor of the plan gone, one of another shape, one under a name that no model knows."""
    changed = []
    for assignment in plan.assignments:
        if "model.layers.1.self_attn.v_proj.weight" in assignment.checkpoint:
            continue
        if "model.layers.0.mlp.down_proj.weight" in assignment.checkpoint:
            assignment = replace(assignment, shapes=((256, 511),))
        if "model.layers.6.input_layernorm.weight" in assignment.checkpoint:
            assignment = replace(assignment, checkpoint=("model.layers.6.no_such_norm.weight",))
        changed.append(assignment)
    return replace(plan, assignments=tuple(changed))


def test_the_real_class_says_what_fits_and_what_does_not(
    tiny: TinyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run from a folder full of modules that must not be imported: it may have been downloaded with the model.

    (A plan without a fault is traced in tests/cli.)
    """
    for name in ("json", "torch", "vllm", "numpy", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    plan, config = planned(tiny("gemma3")[1])
    plan = spoilt(plan)
    found = trace(plan, config.values)
    assert (found.vllm, found.device, found.tensor_parallel) == (compat.vllm_version(), "cpu", 1)
    assert found.target.class_name == "Gemma3ForCausalLM"
    assert found.draft is None and not found.draft_names
    uses = found.target.uses
    assert uses["model.layers.6.self_attn.k_proj.weight"] == (
        ParameterUse("model.layers.6.self_attn.qkv_proj.weight", "k"),
    )
    assert uses["model.layers.6.mlp.up_proj.weight"] == (ParameterUse("model.layers.6.mlp.gate_up_proj.weight", 1),)
    assert uses["model.embed_tokens.weight"] == (ParameterUse("model.embed_tokens.weight"),)

    joined = join_trace(plan, found)
    assert {x.parameter: x.reason for x in joined.missing} == {
        "model.layers.1.self_attn.qkv_proj.weight": "65536 of 262144 elements are not written",
        "model.layers.0.mlp.down_proj.weight": "nothing is written",
        "model.layers.6.input_layernorm.weight": "nothing is written",
    }
    assert [x.tensor for x in joined.mismatched] == ["blk.0.ffn_down.weight"]
    assert "(256, 511)" in joined.mismatched[0].reason
    assert [x.tensor for x in joined.unmapped] == ["blk.6.attn_norm.weight"]
    assert "Gemma3ForCausalLM takes nothing from model.layers.6.no_such_norm.weight" in joined.unmapped[0].reason


def test_a_draft_that_vllm_has_no_class_for_does_not_stop_the_target(tiny: TinyFactory) -> None:
    plan, config = planned(tiny("qwen3")[1])
    last = replace(plan.assignments[-1], role=Role.DRAFT)
    found = trace(replace(plan, assignments=(*plan.assignments[:-1], last)), config.values, ["a_flag"])
    assert found.draft is None and not found.draft_flags
    assert found.draft_error is not None and "speculative" in found.draft_error
    assert found.target.class_name == "Qwen3ForCausalLM"
    assert set(found.target.uses) == {name for a in plan.assignments[:-1] for name in a.checkpoint}


def test_a_simulated_gpu_needs_the_cuda_build(tiny: TinyFactory) -> None:
    assert vllm_available() and not compat.has_cuda_build()
    plan, config = planned(tiny("llama")[1])
    with pytest.raises(MissingDependencyError, match=r"--device sm_100 needs vLLM's CUDA build, found 0\.\d+") as e:
        trace(plan, config.values, world=World("sm_100"))
    assert e.value.exit_code == 3


@pytest.mark.parametrize(
    ("device", "expected"), [("sm_90", (9, 0)), ("sm_100", (10, 0)), ("sm_121", (12, 1)), ("cpu", None)]
)
def test_devices(device: str, expected: tuple[int, int] | None) -> None:
    assert parse_device(device) == expected
    assert World(device).device == device


@pytest.mark.parametrize("device", ["gpu", "sm_", "sm_1", "sm_9x", "SM_90", "cuda", "sm_90 "])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(UsageError, match=r"known are cpu and sm_XY"):
        World(device)


@pytest.mark.parametrize("ranks", [0, -1, 5000])
def test_absurd_numbers_of_ranks_are_refused(ranks: int) -> None:
    with pytest.raises(UsageError, match=f"--tp {ranks}: allowed are"):
        World("cpu", ranks)
