"""The row sets are consistent: every name in them is one that the other tables know."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ggufmap.archs import find_architecture, known_architectures
from ggufmap.archs.base import Architecture, Rule, Source, biases, block, only, top, weights
from ggufmap.errors import UnsupportedError
from ggufmap.mapping.layout import KINDS as BLOCK_KINDS
from ggufmap.mapping.layout import VARIANTS
from ggufmap.mapping.transforms import KINDS
from ggufmap.modeldir.derive import DERIVED

ROWS = {name: find_architecture(name, "m.gguf") for name in known_architectures()}
each = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
# Used with an argument by any family, so by all.
WITH_ARGUMENT = {
    name
    for rows in ROWS.values()
    for rule in rows.rules
    for name, _, argument in [rule.transform.partition(":")]
    if argument
}
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@each
def test_every_transform_is_known_and_bound_as_it_needs(rows: Architecture) -> None:
    """An argument is a number or a header key; a transform has one (or none) wherever it is used."""
    for rule in rows.rules:
        name, _, argument = rule.transform.partition(":")
        assert name in KINDS, rule
        for one in filter(None, argument.split(",")):
            assert re.fullmatch(r"-?\d+|[a-z_.:]+[a-z]", one), rule
        assert bool(argument) == (name in WITH_ARGUMENT), rule


@each
def test_every_kind_of_block_is_known(rows: Architecture) -> None:
    for blocks in (*(rule.blocks for rule in rows.rules), *(skip.blocks for skip in rows.skips)):
        for kind in blocks:
            assert kind in BLOCK_KINDS or kind.startswith(("has:", "lacks:")), kind
    for variant in rows.variants:
        assert variant.when in VARIANTS or variant.when.startswith("projector:")


@each
def test_every_derived_value_has_its_function(rows: Architecture) -> None:
    derived = [row for row in (*rows.config, *rows.draft_flags) if row.source is Source.DERIVED]
    assert {str(row.value) for row in derived} <= DERIVED.keys()


@each
def test_no_config_key_has_two_rows(rows: Architecture) -> None:
    counts = Counter(row.key for row in (*rows.config, *rows.draft_flags))
    assert [key for key, count in counts.items() if count > 1] == []


@each
def test_placeholders_stand_on_both_sides(rows: Architecture) -> None:
    for rule in rows.rules:
        stored = {tuple(PLACEHOLDER.findall(name)) for name in rule.tensors}
        made = {tuple(PLACEHOLDER.findall(name)) for name in rule.checkpoint}
        assert stored in ({("bid",)}, {()}), rule
        # A block may be counted from the first draft, or among its kind, and a stack has a name per expert.
        made = {tuple("bid" if x in ("nextn", "place") else x for x in found if x != "eid") for found in made}
        shared_by_drafts = "draft" in rule.blocks and made == {()}
        assert made == stored or shared_by_drafts, rule
        experts = any("{eid}" in name for name in rule.checkpoint)
        assert experts <= KINDS[rule.transform.partition(":")[0]].cuts_rows, rule
        assert rule.per_block == (stored == {("bid",)})
        assert all(name.startswith("blk.{bid}.") == rule.per_block for name in rule.tensors)


@each
def test_a_tensor_has_one_row_per_kind_of_block(rows: Architecture) -> None:
    counts = Counter((name, rule.blocks) for rule in rows.rules for name in rule.tensors)
    assert [key for key, count in counts.items() if count > 1] == []


@each
def test_what_two_rows_make_is_required_of_at_most_one(rows: Architecture) -> None:
    """A second row for the same checkpoint tensor is an alternative, and says so."""
    required = Counter((name, rule.blocks) for rule in rows.rules if rule.optional is None for name in rule.checkpoint)
    assert [key for key, count in required.items() if count > 1] == []


@each
def test_names_and_classes_are_said(rows: Architecture) -> None:
    assert all(ROWS[name] is rows for name in rows.names)
    assert rows.model_class.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    assert rows.model_type == rows.model_type.lower()
    reasons = [x.reason for x in rows.skips] + [rule.optional for rule in rows.rules if rule.optional is not None]
    assert all(reason.strip() for reason in reasons)


def test_every_spelling_in_the_table_is_one_of_its_rows() -> None:
    for name, rows in ROWS.items():
        assert name in rows.names


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("qwen_3", "qwen3"),
        ("Qwen3", "qwen3"),
        ("gemma-3", "gemma3"),
        ("glm_dsa", "glm-dsa"),
        ("deepseek_v2", "deepseek2"),
    ],
)
def test_another_spelling_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnsupportedError) as e:
        find_architecture(name, "m.gguf")
    assert e.value.message == f"m.gguf: architecture {name!r} is unknown (nearest: {nearest})"
    assert all(known in str(e.value.hint) for known in known_architectures())


@pytest.mark.parametrize("name", ["nobody", "llamas-of-the-world-unite", "", "\x1b[31m", "LLAMA"])
def test_an_unknown_family_is_never_taken_for_another(name: str) -> None:
    with pytest.raises(UnsupportedError, match="is unknown"):
        find_architecture(name, "m.gguf")


@pytest.mark.parametrize("name", ["clip", "mmproj"])
def test_projectors_are_no_models(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"m\.gguf: is a multimodal projector \(mmproj\).*, not a model") as e:
        find_architecture(name, "m.gguf")
    assert "text model" in str(e.value.hint)


def test_helpers_spell_names_in_one_way() -> None:
    assert block("attn_q.weight", "self_attn.q_proj.weight") == Rule(
        ("blk.{bid}.attn_q.weight",), ("model.layers.{bid}.self_attn.q_proj.weight",)
    )
    assert top("a", "b", "add:1") == Rule(("a",), ("b",), "add:1")
    (row,) = weights((("x", "y"),), "add:-1")
    assert row == Rule(("blk.{bid}.x.weight",), ("model.layers.{bid}.y.weight",), "add:-1")
    (bias,) = biases((("x", "y"),))
    assert bias.tensors == ("blk.{bid}.x.bias",) and bias.optional is not None
    assert only((row,), "moe")[0].blocks == ("moe",)
    assert only(only((row,), "moe"), "draft")[0].blocks == ("moe", "draft")
