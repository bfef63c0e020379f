"""Sparse attention's indexers: one per block, or shared between blocks as in GLM-5.2, whatever the file duplicates."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from families.tracing import Tracer
from families.variants import changed, config, loaded, made_from, planned, same
from rich.console import Console
from support import gguf_edit
from support.converter import TinyFactory
from support.gguf_edit import Edited

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Role
from ggufmap.modeldir.config import build_config
from ggufmap.report.console import print_plan
from ggufmap.report.patterns import size

PATTERN, DRAFT = "FFFSSSFS", 8
SHARED = [bid for bid, letter in enumerate(PATTERN) if letter == "S"]
PARTS = ("attn_k.weight", "attn_q_b.weight", "k_norm.bias", "k_norm.weight", "proj.weight")
TYPES = "{arch}.attention.indexer.types"


def names(bid: int) -> list[str]:
    return [f"blk.{bid}.indexer.{part}" for part in PARTS]


def everywhere(file: Edited) -> None:
    """What one publisher does: the indexer of the last full block, again in the blocks that share it."""
    for bid in SHARED:
        for name, source in zip(names(bid), names(2), strict=True):
            file.tensors[name] = file.tensors[source]


def without(*gone: str) -> Callable[[Edited], object]:
    return lambda file: file.drop_tensors(lambda name: name in gone)


def test_a_shared_schedule_has_indexers_where_the_header_says(tiny: TinyFactory) -> None:
    _, path = tiny("glm52")
    plan, made = planned(path), config(path).values
    assert plan.ok, plan.problems()
    indexers = {name for name in plan.model.tensors if ".indexer." in name}
    assert indexers == {name for bid in (0, 1, 2, 6, DRAFT) for name in names(bid)}
    assert made["index_topk_pattern"] == PATTERN
    assert made["indexer_types"] == ["full" if letter == "F" else "shared" for letter in PATTERN]
    assert {a.role for a in plan.assignments if set(a.tensors) & set(names(DRAFT))} == {Role.DRAFT}


@pytest.mark.parametrize("said", [True, False], ids=["types in the header", "by the family's rule"])
def test_indexers_without_a_place_are_skipped_with_their_size(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, said: bool
) -> None:
    def change(file: Edited) -> None:
        everywhere(file)
        if not said:
            file.drop_keys(TYPES)

    _, original = tiny("glm52")
    path = changed(original, tmp_path / "m.gguf", change)
    plan = tracer(path).plan
    assert plan.ok, plan.problems()
    assert {x.tensor for x in plan.skipped} == {name for bid in SHARED for name in names(bid)}
    assert all("phantom indexer" in x.reason for x in plan.skipped)
    assert plan.assignments == planned(original).assignments
    assert same(loaded(path), loaded(original))
    nbytes = sum(plan.model.tensors[x.tensor].nbytes for x in plan.skipped)
    console = Console(width=400, record=True, file=io.StringIO())
    print_plan(console, plan, config_source="header", assumed={})
    (line,) = [line for line in console.export_text().splitlines() if "phantom indexer" in line]
    assert f"skipped   {len(plan.skipped)} x blk.*.indexer." in line
    assert line.rstrip().endswith(f", {size(nbytes)}")


def test_the_family_rule_is_the_header_s_schedule(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("glm52")
    bare = changed(path, tmp_path / "m.gguf", lambda file: file.drop_keys(TYPES))
    assert config(bare).values == config(path).values
    assert planned(bare).assignments == planned(path).assignments


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("bid", [1, 6, DRAFT])
def test_a_missing_indexer_of_a_full_block_is_an_error(tiny: TinyFactory, tmp_path: Path, bid: int, part: str) -> None:
    _, path = tiny("glm52")
    gone = f"blk.{bid}.indexer.{part}"
    plan = planned(changed(path, tmp_path / "m.gguf", without(gone)))
    (missing,) = plan.missing
    assert missing.reason == f"{gone} is not in the file"
    assert missing.role is (Role.DRAFT if bid == DRAFT else Role.TARGET)
    assert missing.parameter.startswith(f"model.layers.{bid}.self_attn.indexer.")


def test_half_an_indexer_in_a_shared_block_is_skipped_as_well(tiny: TinyFactory, tmp_path: Path) -> None:
    def change(file: Edited) -> None:
        everywhere(file)
        file.drop_tensors(lambda name: name in (names(3)[0], names(5)[4]))

    _, path = tiny("glm52")
    plan = planned(changed(path, tmp_path / "m.gguf", change))
    assert plan.ok, plan.problems()
    assert len(plan.skipped) == len(SHARED) * len(PARTS) - 2


@pytest.mark.parametrize("name", ["glm5", "deepseek_v32"])
def test_without_a_schedule_every_block_has_its_own(tiny: TinyFactory, tmp_path: Path, name: str) -> None:
    _, path = tiny(name)
    assert "S" not in str(config(path).text.get("index_topk_pattern", ""))
    plan = planned(changed(path, tmp_path / "m.gguf", without(*names(2))))
    assert {x.reason.split()[0] for x in plan.missing} == set(names(2))


def test_a_schedule_that_is_too_short_is_said(tiny: TinyFactory, tmp_path: Path) -> None:
    from ggufmap.errors import FileError

    def change(file: Edited) -> None:
        types = file.get(TYPES)
        file.set(TYPES, gguf_edit.gb.Array(types.item_type, types.items[:-1]))

    _, path = tiny("glm52")
    with pytest.raises(FileError, match=r"indexer\.types has 7 values for 8 blocks"):
        planned(changed(path, tmp_path / "m.gguf", change))


# E4: the draft's indexer is its own, and turns as its family's does.


@pytest.mark.parametrize("name", ["glm5", "glm52", "deepseek_v32", "glm53_flash"])
def test_the_draft_runs_an_indexer_of_its_own(tiny: TinyFactory, tracer: Tracer, name: str) -> None:
    found = tracer(tiny(name)[1])
    trace, bid = found.plan.trace, found.config.text["num_hidden_layers"]
    assert trace is not None and trace.draft is not None
    own = {tensor for tensor in trace.draft.uses if ".indexer." in tensor}
    assert len(own) == (7 if name == "glm53_flash" else 5)
    assert all(tensor.startswith(f"model.layers.{bid}.self_attn.indexer.") for tensor in own)
    assert not any(tensor.startswith(f"model.layers.{bid}.") for tensor in trace.target.uses)


def test_glm_s_indexers_are_interleaved_and_deepseek_s_are_not(tiny: TinyFactory) -> None:
    interleaved = {name: config(tiny(name)[1]).text.get("indexer_rope_interleave") for name in ("glm5", "glm52")}
    assert interleaved == {"glm5": True, "glm52": True}
    assert "indexer_rope_interleave" not in config(tiny("deepseek_v32")[1]).text  # vLLM's class: not, unless said


# A4, E12: names.


def test_weights_proj_keeps_its_name_when_it_is_quantised(tiny: TinyFactory, tracer: Tracer, tmp_path: Path) -> None:
    _, path = tiny("glm5")

    def change(file: Edited) -> None:
        for bid in range(4):
            name = f"blk.{bid}.indexer.proj.weight"
            file.tensors[name] = gguf_edit.stored(file.tensors[name].values, "Q8_0")

    path = changed(path, tmp_path / "m.gguf", change)
    found = tracer(path)
    assert found.plan.ok, found.plan.problems()
    stored, values = gguf_edit.read(path), loaded(path)
    for bid in range(4):
        tensor, name = f"blk.{bid}.indexer.proj.weight", f"model.layers.{bid}.self_attn.indexer.weights_proj.weight"
        assert found.plan.model.tensors[tensor].ggml_type == "Q8_0"
        assert made_from(found.plan)[tensor] == name
        assert np.array_equal(values[name].numpy(), stored.tensors[tensor].values)
    assert found.plan.trace is not None
    fused = {
        p.name for x in found.plan.trace.target.uses for p in found.plan.trace.target.uses[x] if "weights_proj" in x
    }
    assert fused == {f"model.layers.{bid}.self_attn.indexer.wk_weights_proj.weight" for bid in range(3)}


def test_indexer_tensors_have_the_names_of_the_real_modules(tiny: TinyFactory) -> None:
    _, path = tiny("glm5")
    made = {tensor: name for tensor, name in made_from(planned(path)).items() if "blk.1.indexer." in tensor}
    indexer = "model.layers.1.self_attn.indexer."
    assert made == {
        "blk.1.indexer.attn_q_b.weight": f"{indexer}wq_b.weight",
        "blk.1.indexer.attn_k.weight": f"{indexer}wk.weight",
        "blk.1.indexer.proj.weight": f"{indexer}weights_proj.weight",
        "blk.1.indexer.k_norm.weight": f"{indexer}k_norm.weight",
        "blk.1.indexer.k_norm.bias": f"{indexer}k_norm.bias",
    }


def test_a_list_of_unquantised_modules_is_not_believed(tiny: TinyFactory, tmp_path: Path) -> None:
    """The FP8 repository's list names `indexers_proj`, which is no module. Nothing of ours reads it."""
    model, path = tiny("glm5")
    quantised = {
        **json.loads((model.folder / "config.json").read_text()),
        "quantization_config": {
            "quant_method": "fp8",
            "modules_to_not_convert": [f"model.layers.{bid}.self_attn.indexers_proj" for bid in range(4)],
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(quantised))
    (tmp_path / "m.gguf").symlink_to(path)
    plain = planned(path)
    with open_checkpoint(tmp_path / "m.gguf") as checkpoint:
        made = build_config(checkpoint, find_architecture("glm-dsa", "m"))
    assert "quantization_config" not in made.values
    assert [warning.code for warning in made.warnings] == ["W102"]
    assert planned(tmp_path).assignments == plain.assignments
