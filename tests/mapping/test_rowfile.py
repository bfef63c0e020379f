"""The row file of an inferred family: Python that makes the same rows, whatever the names in it are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ggufmap.archs import find_architecture
from ggufmap.archs.base import Architecture, Rule, Source
from ggufmap.mapping.infer import inferred
from ggufmap.mapping.rowfile import row_file


def made(text: str) -> Architecture:
    """What the file defines when it is run."""
    names: dict[str, Any] = {}
    exec(compile(text, "family.py", "exec"), names)
    (found,) = [value for value in names.values() if isinstance(value, Architecture)]
    return found


def without_optional(rules: tuple[Rule, ...]) -> set[Rule]:
    return {rule for rule in rules if rule.optional is None}


def keys(family: Architecture) -> list[str]:
    return sorted(repr((row.key, row.source, row.value)) for row in family.config)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3moe", "olmo2", "phi3", "gemma2", "glm4moe", "gpt2"])
def test_the_file_makes_the_same_rows(name: str) -> None:
    family = find_architecture(name, "x")
    rules = tuple(rule for rule in family.rules if rule.optional is None)
    config = tuple(row for row in family.config if row.source is not Source.ASSUMED)
    family = replace(family, rules=rules, config=config)
    text = row_file(family, "made of a known one.", {})
    found = made(text)
    assert without_optional(found.rules) == without_optional(rules)
    assert keys(found) == keys(family)
    assert (found.names[0], found.model_type, found.model_class) == (name, family.model_type, family.model_class)
    assert max(map(len, text.splitlines())) <= 120


def test_shared_blocks_are_named() -> None:
    family = find_architecture("qwen3", "x")
    family = replace(family, rules=tuple(rule for rule in family.rules if rule.optional is None))
    text = row_file(family, "as in the folder.", {})
    assert "    rules=EMBEDDING + ATTENTION + QK_NORM + GATED_MLP + PRE_NORMS + FINAL_NORM,\n" in text
    assert "        *COMMON_CONFIG," in text


@pytest.mark.parametrize("name", ['x",), exit(1), ("', '"""\nexit(1)\n"""', "\\", "7b", "é\u202e", "", "a'b"])
def test_a_hostile_name_stays_a_string(name: str) -> None:
    text = row_file(inferred(name, find_architecture("qwen3", "x").rules), "whatever it is called.", {})
    assert text.isascii()
    assert made(text).names == (name,)


def test_a_remark_stands_above_its_row() -> None:
    rule = Rule(("blk.{bid}.attn_norm.weight",), ("h.{bid}.ln_1.weight",))
    text = row_file(inferred("new", (rule,)), "with a remark.", {rule.tensors[0]: "or transformer.h.{bid}.ln_1.weight"})
    assert "        # or transformer.h.{bid}.ln_1.weight\n        Rule((" in text
    assert made(text).rules == (rule,)
