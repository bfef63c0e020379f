"""What holds of a whole file: heads tied or not over all splits, nothing dropped, nothing loaded that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from families.tracing import Tracer
from families.variants import changed, config, planned
from support import gguf_edit
from support.converter import TinyFactory
from support.gguf_edit import Edited

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.errors import MappingError, UsageError
from ggufmap.mapping import resolve
from ggufmap.modeldir.config import build_config
from ggufmap.serving.loader import outside_float16
from ggufmap.serving.preflight import preflight
from ggufmap.serving.serve import check_gate
from ggufmap.stream import stream

# A3: the head is where it is, whatever a config says.


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_head_is_tied_when_no_split_has_one(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, tied: bool, splits: int
) -> None:
    file = gguf_edit.read(tiny("llama")[1])
    if tied:
        del file.tensors["output.weight"]
    if splits == 1:
        path = file.write(tmp_path / "m.gguf")
    else:  # the head in the last split
        late = [name for name in file.tensors if name in ("output.weight", "output_norm.weight")]
        path = file.write_splits(tmp_path, [[name for name in file.tensors if name not in late], late])
    found = tracer(path)
    plan = found.plan
    assert plan.ok, plan.problems()
    assert plan.model.splits == splits
    assert found.config.values["tie_word_embeddings"] is tied
    assert [x.reason for x in plan.phantom if x.tensor == "output.weight"] == (
        ["optional: tied to token_embd.weight"] if tied else []
    )
    assert plan.trace is not None
    assert plan.trace.target.uses.keys() & {"lm_head.weight"} == (set() if tied else {"lm_head.weight"})


def test_a_tied_head_that_the_class_of_vllm_cannot_tie_is_refused(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path
) -> None:
    """vLLM's Glm4MoeForCausalLM has a head of its own whatever the config says: unfilled, it would answer noise."""
    plan = tracer(changed(tiny("glm46")[1], tmp_path / "m.gguf", lambda file: file.tensors.pop("output.weight"))).plan
    assert [(x.parameter, x.reason) for x in plan.missing] == [("lm_head.weight", "nothing is written")]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_config_that_disagrees_about_the_head_is_overruled(tiny: TinyFactory, tmp_path: Path, tied: bool) -> None:
    model, path = tiny("glm46")
    if tied:
        path = changed(path, tmp_path / "m.gguf", lambda file: file.tensors.pop("output.weight"))
    other = {**json.loads((model.folder / "config.json").read_text()), "tie_word_embeddings": not tied}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with open_checkpoint(path) as checkpoint:
        made = build_config(checkpoint, find_architecture("glm4moe", "m"), tmp_path)
    assert made.values["tie_word_embeddings"] is tied
    assert [w.code for w in made.warnings if "tie_word_embeddings" in w.message] == ["W103"]


# A6: fail before the first byte.


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda f: f.tensors.update({"blk.1.attn_sinks.weight": gguf_edit.stored(np.ones(4))}),
            "unmapped blk.1.attn_sinks.weight",
        ),
        (lambda f: f.tensors.pop("blk.2.ffn_up_shexp.weight"), "missing model.layers.2.mlp.shared_experts.up_proj"),
        (lambda f: f.tensors.pop("blk.3.ffn_down_exps.weight"), "missing model.layers.3.mlp.experts"),
    ],
    ids=["extra", "missing", "missing of the draft"],
)
def test_nothing_is_read_of_a_file_that_does_not_fit(
    tiny: TinyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object, problem: str
) -> None:
    path = changed(tiny("glm46")[1], tmp_path / "m.gguf", change)  # type: ignore[arg-type]
    monkeypatch.setattr(Checkpoint, "read_into", lambda *_: pytest.fail("a tensor was read"))
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture("glm4moe", "m"))
        with pytest.raises(MappingError, match="the mapping has 1 problems") as e:
            next(stream(plan, checkpoint, torch.float32))
    assert problem in e.value.message
    found = preflight(path, offline=True)
    with found.checkpoint, pytest.raises(MappingError, match="not served"):
        check_gate(found, [], force=False)


def test_every_tensor_is_assigned_or_skipped_with_a_reason(tiny: TinyFactory) -> None:
    for name in ("glm45", "glm52", "deepseek_v3", "glm53_flash"):
        plan = planned(tiny(name)[1])
        placed = [tensor for a in plan.assignments for tensor in a.tensors]
        assert sorted(placed + [x.tensor for x in plan.skipped]) == sorted(plan.model.tensors)


# C2: float16 has its limits.


@pytest.mark.parametrize("option", [["--dtype", "half"], ["--dtype=float16"]])
@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm5", "glm53_flash"])
def test_float16_is_refused_where_activations_leave_its_range(tiny: TinyFactory, name: str, option: list[str]) -> None:
    found = preflight(tiny(name)[1], offline=True)
    with found.checkpoint:
        with pytest.raises(UsageError, match="exceed fp16's range") as e:
            check_gate(found, option, force=False)
        assert e.value.hint == "Use --dtype bfloat16 or float32, or --force."
        assert len(check_gate(found, option, force=True)) == 1
        assert check_gate(found, ["--dtype", "bfloat16"], force=False) == []
        assert check_gate(found, [], force=False) == []
    assert config(tiny(name)[1]).values["dtype"] == "bfloat16"


def test_values_outside_float16_are_counted() -> None:
    """What a weight of 1e5 becomes when it is copied into a float16 parameter, and a NaN that the file had."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).half()
    with torch.no_grad():
        model[0].weight.copy_(torch.full((4, 4), 3.0))
        assert outside_float16(model) == {}
        model[0].weight[1].copy_(torch.tensor([1e5, -1e5, 65504.0, 0.0]))
        model[1].bias[1] = float("nan")
    assert outside_float16(model) == {"0.weight": 2, "1.bias": 1}
    assert outside_float16(model.float()) == {}  # other types are not looked at


def test_a_dense_head_of_the_draft_is_decided_by_the_file(tiny: TinyFactory, tmp_path: Path) -> None:
    def change(file: Edited) -> None:
        del file.tensors["output.weight"]

    plan = planned(changed(tiny("glm45")[1], tmp_path / "m.gguf", change))
    assert plan.ok, plan.problems()
    names = {name for a in plan.assignments for name in a.checkpoint}
    assert "lm_head.weight" not in names
    assert "model.layers.3.shared_head.head.weight" in names
