"""Draft (MTP, nextn) blocks: found by their tensors, routed as vLLM does, shared where the file has no own part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from families.tracing import Tracer
from families.variants import changed, codes, config, loaded, planned, same
from support import conformance, gguf_edit
from support.converter import TinyFactory
from support.gguf_edit import Edited

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MappingError, UsageError
from ggufmap.mapping import Plan, Role, join_trace, resolver
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.derive import DERIVED
from ggufmap.modeldir.manifest import read_manifest
from ggufmap.serving.loader import _open
from ggufmap.serving.preflight import preflight
from ggufmap.serving.serve import check_gate, speculative_config

BID = 3  # the draft block of the tiny models
FAMILIES = ("glm46", "glm5", "deepseek_v3", "glm53_flash")


def draft_tensors(plan: Plan) -> set[str]:
    return {name for a in plan.assignments if a.role is Role.DRAFT for name in a.tensors}


def without_draft(file: Edited) -> None:
    assert file.drop_tensors(lambda name: name.startswith(f"blk.{file.get('{arch}.block_count') - 1}."))


# E1: metadata that promises what the file does not hold.


@pytest.mark.parametrize("counted", [True, False], ids=["block_count with it", "block_count without it"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_promised_draft_without_tensors_is_a_phantom(
    tiny: TinyFactory, tmp_path: Path, name: str, counted: bool
) -> None:
    def change(file: Edited) -> None:
        without_draft(file)
        if not counted:
            file.set("{arch}.block_count", file.get("{arch}.block_count") - 1)

    _, path = tiny(name)
    path = changed(path, tmp_path / "m.gguf", change)
    plan = planned(path)
    assert plan.ok, plan.problems()
    assert plan.model.draft_blocks == 0
    assert plan.model.blocks == (4 if name == "glm53_flash" else 3)
    assert not draft_tensors(plan)
    (warning,) = plan.warnings
    assert warning.code == "W107"
    assert warning.message.startswith("phantom MTP: nextn_predict_layers is 1")
    assert config(path).text["num_hidden_layers"] == plan.model.blocks
    assert config(path).text["num_nextn_predict_layers"] == 0
    assert "index_share_for_mtp_iteration" not in config(path).text
    found = preflight(path, offline=True)
    with found.checkpoint:
        assert speculative_config(found, []) is None
        with pytest.raises(UsageError, match="has no draft block"):
            speculative_config(found, [], tokens=1)


def test_the_trunk_of_a_phantom_is_what_vllm_builds(tiny: TinyFactory, tracer: Tracer, tmp_path: Path) -> None:
    _, path = tiny("glm46")
    plan = tracer(changed(path, tmp_path / "m.gguf", without_draft)).plan
    assert plan.ok, plan.problems()
    assert plan.trace is not None and plan.trace.draft is None and not plan.trace.draft_names


def test_a_draft_that_no_key_promises_is_found(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("glm46")
    whole = planned(path)
    plan = planned(changed(path, tmp_path / "m.gguf", lambda f: f.drop_keys("{arch}.nextn_predict_layers")))
    assert plan.ok, plan.problems()
    assert plan.assignments == whole.assignments
    assert codes(plan) == ["W106"]


def test_a_draft_that_vllm_cannot_build_is_left_out(tracer: Tracer, tmp_path: Path) -> None:
    """vLLM 0.32.0: the config class of Step 3.5 cuts layer_types to the trunk, and Step3p5MTP looks beyond it."""
    found = tracer(conformance.make(conformance.all_cases()["step3p5_mtp"], tmp_path).gguf)
    plan = found.plan
    assert plan.ok, plan.problems()
    assert (plan.model.draft_blocks, len(draft_tensors(plan))) == (2, 34)
    assert plan.trace is not None and plan.trace.draft is None
    assert plan.trace.draft_error == "Step3p5MTP: IndexError: list index out of range"
    assert [w.message for w in plan.warnings if w.code == "W114"] == [
        f"this vLLM cannot build the draft ({plan.trace.draft_error}): its blocks are not used"
    ]
    assert speculative_config(found, []) is None
    with pytest.raises(UsageError, match="this vLLM has no draft: Step3p5MTP: IndexError"):
        speculative_config(found, [], tokens=2)


# E2: block_count counts the draft, num_hidden_layers does not.


@pytest.mark.parametrize("name", FAMILIES)
def test_the_last_block_is_no_decoder_layer(tiny: TinyFactory, name: str) -> None:
    _, path = tiny(name)
    plan, made = planned(path), config(path).text
    blocks = gguf_edit.read(path).get("{arch}.block_count")
    assert (made["num_hidden_layers"], made["num_nextn_predict_layers"]) == (blocks - 1, 1)
    assert draft_tensors(plan) == {name for name in plan.model.tensors if name.startswith(f"blk.{blocks - 1}.")}
    for key in ("layer_types", "mlp_layer_types", "indexer_types"):
        assert len(made.get(key) or range(blocks - 1)) == blocks - 1


def test_draft_blocks_that_are_not_the_last_are_refused(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("glm46")
    path = changed(path, tmp_path / "m.gguf", lambda f: f.set("{arch}.block_count", 5))
    with pytest.raises(FileError, match=r"draft blocks \[3\] are not the last of 5 blocks"):
        planned(path)


# E5: the draft's own embedding and head are optional, the rest is not.

OWN = (f"blk.{BID}.nextn.embed_tokens.weight", f"blk.{BID}.nextn.shared_head_head.weight")


@pytest.mark.parametrize("absent", [(), OWN[:1], OWN[1:], OWN], ids=["both", "head", "embedding", "neither"])
def test_an_own_embedding_or_head_is_optional(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, absent: tuple[str, ...]
) -> None:
    _, path = tiny("glm45")
    path = changed(path, tmp_path / "m.gguf", lambda f: f.drop_tensors(lambda name: name in absent))
    plan = tracer(path).plan
    assert plan.ok, plan.problems()
    phantoms = [(x.tensor, x.reason) for x in plan.phantom if x.tensor in OWN]
    assert phantoms == [(name, "optional: not in the file: shared with the target") for name in OWN if name in absent]
    assert plan.trace is not None and plan.trace.draft is not None
    deferred = {"model.embed_tokens": OWN[0], f"model.layers.{BID}.shared_head.head": OWN[1]}
    assert plan.trace.draft.deferred.keys() == {module for module, name in deferred.items() if name in absent}
    assert set(plan.trace.draft.deferred.values()) <= {512 * 256 * 2}
    allocated = {name.removesuffix(".weight") for name in plan.trace.draft.parameters}
    assert not allocated & plan.trace.draft.deferred.keys()


@pytest.mark.parametrize("part", ["enorm", "hnorm", "shared_head_norm"])
def test_the_rest_of_nextn_is_required(tiny: TinyFactory, tmp_path: Path, part: str) -> None:
    _, path = tiny("glm46")
    gone = f"blk.{BID}.nextn.{part}.weight"
    plan = planned(changed(path, tmp_path / "m.gguf", lambda f: f.drop_tensors(lambda name: name == gone)))
    (missing,) = plan.missing
    assert missing.role is Role.DRAFT
    assert missing.parameter.startswith(f"model.layers.{BID}.")
    assert gone in missing.reason


def test_a_draft_block_without_its_projection_is_reported_not_run(tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("glm46")
    gone = f"blk.{BID}.nextn.eh_proj.weight"
    plan = planned(changed(path, tmp_path / "m.gguf", lambda f: f.drop_tensors(lambda name: name == gone)))
    assert not plan.ok
    assert {x.tensor for x in plan.unmapped} >= {f"blk.{BID}.nextn.enorm.weight"}
    assert not draft_tensors(plan)


# E7: every draft block counts.


def second_draft(file: Edited, own: bool = True) -> None:
    first = {name: t for name, t in file.tensors.items() if name.startswith(f"blk.{BID}.")}
    for name, tensor in first.items():
        if own or name not in OWN:
            file.tensors[name.replace(f"blk.{BID}.", f"blk.{BID + 1}.")] = tensor
    file.set("{arch}.block_count", BID + 2)
    file.set("{arch}.nextn_predict_layers", 2)


@pytest.mark.parametrize("name", ["glm46", "glm45", "deepseek_v3"])
def test_two_draft_blocks_are_both_routed(tiny: TinyFactory, tracer: Tracer, tmp_path: Path, name: str) -> None:
    _, path = tiny(name)
    found = tracer(changed(path, tmp_path / "m.gguf", lambda file: second_draft(file, own=False)))
    plan = found.plan
    if name == "glm45":  # each block of this class has a head, and one of them would be its own, the other shared
        assert [x.parameter for x in plan.missing] == [f"model.layers.{BID + 1}.shared_head.head.weight"]
        return
    assert plan.ok, plan.problems()
    assert found.config.text["num_nextn_predict_layers"] == 2
    assert found.config.text["num_hidden_layers"] == BID
    blocks = {name.split(".")[1] for name in draft_tensors(plan)}
    assert blocks == {str(BID), str(BID + 1)}
    assert plan.trace is not None and plan.trace.draft is not None
    layers = {name.split(".")[2] for name in plan.trace.draft.parameters if ".layers." in name}
    assert layers == {str(BID), str(BID + 1)}
    assert speculative_config(found, []) == {"method": "mtp", "num_speculative_tokens": 2}


def test_what_vllm_would_ignore_of_a_second_draft_is_said(tiny: TinyFactory, tracer: Tracer, tmp_path: Path) -> None:
    """vLLM's drafts have one embedding, the first block's: a second one is refused, never dropped."""
    _, path = tiny("glm45")
    plan = tracer(changed(path, tmp_path / "m.gguf", second_draft)).plan
    assert [x.tensor for x in plan.unmapped] == [f"blk.{BID + 1}.nextn.embed_tokens.weight"]


# Routing: vLLM's word counts.


def test_a_draft_routed_to_the_target_is_a_mismatch(tiny: TinyFactory, tracer: Tracer) -> None:
    """What the rows say and what vLLM's get_spec_layer_idx_from_weight_name says must agree, for every tensor."""
    from dataclasses import replace

    _, path = tiny("glm46")
    good = tracer(path).plan
    assert good.trace is not None
    flipped = {Role.DRAFT: Role.TARGET, Role.TARGET: Role.DRAFT}
    swapped = replace(good, trace=None, assignments=tuple(replace(a, role=flipped[a.role]) for a in good.assignments))
    bad = join_trace(swapped, good.trace)
    assert {x.tensor for x in bad.mismatched} == {a.tensors[0] for a in good.assignments}
    lost = join_trace(replace(good, trace=None), replace(good.trace, draft_names=frozenset()))
    assert {x.tensor for x in lost.mismatched} == {a.tensors[0] for a in good.assignments if a.role is Role.DRAFT}
    assert all("vLLM says the target" in x.reason for x in lost.mismatched)


def test_a_draft_given_to_the_target_is_found_and_not_served(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the rows did not know of drafts: vLLM's target takes none of it, without a word."""
    monkeypatch.setattr(resolver, "_role", lambda state, name: Role.TARGET)
    found = tracer(changed(tiny("glm46")[1], tmp_path / "m.gguf", lambda file: None))
    draft = {name for name in found.plan.model.tensors if name.startswith(f"blk.{BID}.")}
    assert {x.tensor for x in found.plan.mismatched} == draft
    assert {x.tensor for x in found.plan.unmapped} == draft
    with pytest.raises(MappingError, match="not served"):
        check_gate(found, [], force=False)


def test_a_target_block_given_to_the_draft_is_found(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = resolver._role
    monkeypatch.setattr(
        resolver, "_role", lambda state, name: Role.DRAFT if name.startswith("blk.2.") else real(state, name)
    )
    plan = tracer(changed(tiny("glm46")[1], tmp_path / "m.gguf", lambda file: None)).plan
    moved = {name for name in plan.model.tensors if name.startswith("blk.2.")}
    assert {x.tensor for x in plan.mismatched} == moved
    assert {x.parameter.split(".")[2] for x in plan.missing} == {"2"}


def test_a_config_that_hides_the_draft_is_found(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With num_nextn_predict_layers 0 vLLM has no draft, and says so."""
    monkeypatch.setitem(DERIVED, "num_nextn_predict_layers", lambda blocks: 0)
    found = tracer(changed(tiny("glm46")[1], tmp_path / "m.gguf", lambda file: None))
    assert found.plan.trace is not None and found.plan.trace.draft is None
    assert "W114" in [warning.code for warning in found.plan.warnings]
    assert speculative_config(found, []) is None


# E8: a draft in a file of its own.


@pytest.fixture(scope="module")
def apart(tiny: TinyFactory) -> tuple[Path, Path, Path]:
    """(combined file, trunk without the draft, draft file), as the converter writes them."""
    return tiny("glm46")[1], tiny("glm46", extra=("--no-mtp",))[1], tiny("glm46", extra=("--mtp",))[1]


def test_a_separate_draft_makes_the_combined_model(apart: tuple[Path, Path, Path], tracer: Tracer) -> None:
    combined, trunk, draft = apart
    assert planned(trunk).model.draft_blocks == 0
    plan = tracer(trunk, draft).plan
    assert plan.ok, plan.problems()
    assert codes(plan) == []
    expected = planned(combined)
    assert {(a.tensors, a.checkpoint, a.role) for a in plan.assignments} == {
        (a.tensors, a.checkpoint, a.role) for a in expected.assignments
    }
    assert same(loaded(trunk, draft), loaded(combined))
    assert config(trunk, draft).values == config(combined).values
    assert speculative_config(tracer(trunk, draft), []) == {"method": "mtp", "num_speculative_tokens": 1}


def test_the_model_directory_remembers_the_draft(apart: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, trunk, draft = apart
    with open_checkpoint(trunk, draft=draft) as checkpoint:
        made = config(trunk, draft)
        folder = build_model_dir(checkpoint, made, output=tmp_path / "dir")
    assert read_manifest(folder).draft == draft.resolve()
    checkpoint, plan = _open(folder)  # as the load format does
    checkpoint.close()
    assert plan.model.draft_blocks == 1
    assert json.loads((folder / "config.json").read_text())["num_nextn_predict_layers"] == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda f: f.set("general.architecture", "glm-dsa"), "is a draft for glm-dsa, the model is glm4moe"),
        (
            lambda f: f.set("glm4moe.embedding_length", 512),
            "embedding_length is 512, the model's is 256: not its draft",
        ),
        (
            lambda f: f.tensors.update({"token_embd.weight": gguf_edit.stored(torch.zeros(544, 256).numpy())}),
            r"token_embd.weight is \(544, 256\), the model's is \(512, 256\): not its draft",
        ),
        (lambda f: f.drop_tensors(lambda name: "eh_proj" in name), "has no draft block"),
    ],
    ids=["architecture", "hidden size", "vocabulary", "no draft"],
)
def test_a_foreign_draft_is_refused(
    apart: tuple[Path, Path, Path], tmp_path: Path, change: object, complaint: str
) -> None:
    _, trunk, draft = apart
    path = changed(draft, tmp_path / "mtp-m.gguf", change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=complaint):
        planned(trunk, path)


def test_a_second_draft_for_a_model_that_has_one_is_refused(apart: tuple[Path, Path, Path]) -> None:
    combined, _, draft = apart
    with pytest.raises(UsageError, match="the model's file has draft blocks already"):
        planned(combined, draft)


def test_a_draft_file_is_no_model(apart: tuple[Path, Path, Path]) -> None:
    _, _, draft = apart
    with pytest.raises(UsageError, match="holds only the draft block 3") as e:
        planned(draft)
    assert e.value.hint == "Give the model's own file, and this one with --draft."


def test_a_draft_beside_the_model_is_not_taken_for_it(apart: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, trunk, draft = apart
    for name, path in (("m.gguf", trunk), ("mtp-m.gguf", draft), ("MTP-other.gguf", draft)):
        (tmp_path / name).symlink_to(path)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.path.name == "m.gguf"
    assert planned(tmp_path, tmp_path / "mtp-m.gguf").model.draft_blocks == 1
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(UsageError, match="holds no model"):
        planned(tmp_path)


# E9: the draft's types are its own.


@pytest.mark.parametrize(("trunk", "draft"), [("q8_0", "f32"), ("f32", "q8_0")])
def test_a_draft_in_another_precision(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, trunk: str, draft: str
) -> None:
    sources = {kind: tiny("deepseek_v3", outtype=kind)[1] for kind in (trunk, draft)}

    def change(file: Edited) -> None:
        other = gguf_edit.read(sources[draft])
        file.tensors.update({name: t for name, t in other.tensors.items() if name.startswith(f"blk.{BID}.")})

    path = changed(sources[trunk], tmp_path / "m.gguf", change)
    plan = tracer(path).plan
    assert plan.ok, plan.problems()
    types = {
        role: {plan.model.tensors[n].ggml_type for a in plan.assignments if a.role is role for n in a.tensors}
        for role in Role
    }
    quantised = Role.TARGET if trunk == "q8_0" else Role.DRAFT
    assert {role for role, found in types.items() if "Q8_0" in found} == {quantised}
    found, exact, rounded = loaded(path), loaded(sources["f32"]), loaded(sources["q8_0"])
    for name, tensor in found.items():
        is_draft = name.startswith(f"model.layers.{BID}.")
        assert torch.equal(tensor, (rounded if is_draft == (draft == "q8_0") else exact)[name]), name


def test_rows_of_every_family_name_the_same_draft_parts() -> None:
    for name in ("glm4moe", "glm-dsa", "glm5-next", "deepseek2", "deepseek32"):
        rules = find_architecture(name, "m").rules
        parts = {t.removeprefix("blk.{bid}.nextn.") for rule in rules for t in rule.tensors if ".nextn." in t}
        assert parts == {
            f"{part}.weight"
            for part in ("eh_proj", "enorm", "hnorm", "shared_head_norm", "embed_tokens", "shared_head_head")
        }
