"""Patterns and the choice among their names, without vLLM: what a class takes is written down here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.archs.base import Rule
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import layout
from ggufmap.mapping.infer import Pattern, Taken, choose, find_patterns, inferred
from ggufmap.mapping.plan import ParameterUse

ALIASES = {
    "token_embd": ("transformer.wte", "model.embed_tokens"),
    "blk.{bid}.attn_norm": ("h.{bid}.ln_1", "model.layers.{bid}.input_layernorm"),
    "blk.{bid}.ffn_norm": ("model.layers.{bid}.post_norm", "model.layers.{bid}.pre_norm"),
    "blk.{bid}.post_attention_norm": ("model.layers.{bid}.post_norm",),
    "blk.{bid}.ffn_up_exps": ("model.layers.{bid}.mlp.experts.up_proj", "model.layers.{bid}.moe.up"),
    "blk.{bid}.exp_probs_b": ("model.layers.{bid}.gate.correction",),
    "blk.{bid}.ssm_conv1d": ("model.layers.{bid}.conv",),
}


def patterns(folder: Path, *tensors: TensorSpec, blocks: int = 2) -> dict[str, Pattern]:
    metadata = small.llama_metadata(blocks) | {"general.architecture": (gb.STRING, "llama")}
    with open_checkpoint(small.write_llama(folder / "m.gguf", metadata, list(tensors))) as checkpoint:
        found = find_patterns(checkpoint, layout(checkpoint, inferred("llama")), ALIASES)
    return {pattern.tensor: pattern for pattern in found}


def norms(*parts: str) -> list[TensorSpec]:
    return [small.tensor(f"blk.{bid}.{part}.weight", 8) for part in parts for bid in range(2)]


def taken(*names: str, shape: tuple[int, ...] = (8,)) -> Taken:
    """Each name fills a parameter of its own name."""
    return {(name, shape): [ParameterUse(name)] for name in names}


def names(rules: Sequence[Rule]) -> list[str]:
    return [rule.checkpoint[0] for rule in rules]


def test_every_pattern_has_its_aliases_in_order(tmp_path: Path) -> None:
    found = patterns(tmp_path, small.tensor("token_embd.weight", 4, 8), *norms("attn_norm", "unheard_of"))
    assert list(found) == ["token_embd.weight", "blk.{bid}.attn_norm.weight", "blk.{bid}.unheard_of.weight"]
    first = found["blk.{bid}.attn_norm.weight"].stages[0]
    assert [(c.name, c.shape) for c in first] == [
        ("h.0.ln_1.weight", (8,)),
        ("model.layers.0.input_layernorm.weight", (8,)),
    ]
    assert found["blk.{bid}.attn_norm.weight"].blocks == (0, 1)
    assert found["blk.{bid}.unheard_of.weight"].candidates == []


def test_parameters_without_a_module_and_reshaped_ones_are_later_stages(tmp_path: Path) -> None:
    bias = small.tensor("blk.0.exp_probs_b.bias", 8)
    conv = small.tensor("blk.0.ssm_conv1d.weight", 8, 4)
    found = patterns(tmp_path, bias, conv, *norms("attn_norm"))
    plain, unusual, _ = found["blk.{bid}.exp_probs_b.bias"].stages
    assert [c.name for c in plain] == ["model.layers.0.gate.correction.bias"]
    assert [c.name for c in unusual] == ["model.layers.0.gate.correction", "model.layers.0.gate.correction_bias"]
    reshaped = found["blk.{bid}.ssm_conv1d.weight"].stages[2]
    assert ("model.layers.0.conv.weight", (8, 1, 4), "conv_channels") in [
        (c.name, c.shape, c.rule.transform) for c in reshaped
    ]


def test_stacked_experts_are_cut_where_the_alias_has_experts(tmp_path: Path) -> None:
    stacks = [small.tensor(f"blk.{bid}.ffn_up_exps.weight", 3, 4, 8) for bid in range(2)]
    (pattern,) = patterns(tmp_path, *stacks).values()
    assert [(c.name, c.shape, c.rule.checkpoint[0], c.rule.transform) for c in pattern.stages[0]] == [
        ("model.layers.0.mlp.experts.0.up_proj.weight", (4, 8), EXPERT, "experts"),
        ("model.layers.0.mlp.experts.up_proj.weight", (3, 4, 8), EXPERT.replace(".{eid}", ""), "copy"),
        ("model.layers.0.moe.up.weight", (3, 4, 8), "model.layers.{bid}.moe.up.weight", "copy"),
    ]


EXPERT = "model.layers.{bid}.mlp.experts.{eid}.up_proj.weight"


def test_a_pattern_of_some_blocks_has_their_kind(tmp_path: Path) -> None:
    routed = small.tensor("blk.1.ffn_gate_inp.weight", 4, 8)
    some = [small.tensor("blk.1.attn_norm.weight", 8), small.tensor("blk.0.ffn_norm.weight", 8)]
    more = [small.tensor(f"blk.{bid}.post_attention_norm.weight", 8) for bid in (0, 2)]
    found = patterns(tmp_path, routed, *some, *more, blocks=3)
    rows = {tensor: pattern.candidates[0].rule for tensor, pattern in found.items() if pattern.candidates}
    assert rows["blk.{bid}.attn_norm.weight"].blocks == ("routed",)
    assert rows["blk.{bid}.post_attention_norm.weight"].blocks == ("unrouted",)
    odd = rows["blk.{bid}.ffn_norm.weight"]
    assert (odd.blocks, odd.optional) == ((), "only some blocks have it")


def test_the_name_that_is_taken_is_chosen_and_the_others_are_kept(tmp_path: Path) -> None:
    found = list(patterns(tmp_path, *norms("attn_norm")).values())
    both = taken("h.0.ln_1.weight", "model.layers.0.input_layernorm.weight")
    assert names(choose(found, both)["blk.{bid}.attn_norm.weight"]) == [
        "h.{bid}.ln_1.weight",
        "model.layers.{bid}.input_layernorm.weight",
    ]
    one = taken("model.layers.0.input_layernorm.weight")
    assert names(choose(found, one)["blk.{bid}.attn_norm.weight"]) == ["model.layers.{bid}.input_layernorm.weight"]
    assert choose(found, taken("model.layers.0.input_layernorm.weight", shape=(9,))) == {}


def test_no_two_tensors_fill_the_same_parameter(tmp_path: Path) -> None:
    """Gemma's norms: ffn_norm fits both names, post_attention_norm only one of them."""
    found = list(patterns(tmp_path, *norms("ffn_norm", "post_attention_norm")).values())
    chosen = choose(found, taken("model.layers.0.post_norm.weight", "model.layers.0.pre_norm.weight"))
    assert {tensor: names(rules) for tensor, rules in chosen.items()} == {
        "blk.{bid}.ffn_norm.weight": ["model.layers.{bid}.pre_norm.weight"],
        "blk.{bid}.post_attention_norm.weight": ["model.layers.{bid}.post_norm.weight"],
    }


@pytest.mark.parametrize("part", ["attn_norm", "ffn_norm"])
def test_without_a_class_to_ask_it_is_the_first_alias(tmp_path: Path, part: str) -> None:
    found = list(patterns(tmp_path, *norms(part)).values())
    (rules,) = choose(found, None).values()
    assert names(rules) == [ALIASES[f"blk.{{bid}}.{part}"][0] + ".weight"]


def test_what_carries_no_parameter_is_no_pattern(tmp_path: Path) -> None:
    found = patterns(tmp_path, *norms("attn_norm"), small.tensor("rope_freqs.weight", 4))
    assert list(found) == ["blk.{bid}.attn_norm.weight"]
