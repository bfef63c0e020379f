"""Rows for a family that has none: each tensor pattern of the file with the checkpoint names it may stand for.

The names are gguf-py's aliases of all families; which of them a vLLM class takes is asked elsewhere
(`target/probe.py`). What comes of it fits by name and shape. Values are not proven: no shape shows a permuted row or a
norm stored plus one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ggufmap.archs.base import Architecture, Rule
from ggufmap.archs.phi import ROPE_FACTORS
from ggufmap.checkpoint import Checkpoint
from ggufmap.mapping.layout import Layout, block_of
from ggufmap.mapping.plan import ParameterUse
from ggufmap.mapping.transforms import Shape, Transform, output_shapes

_BLOCK = re.compile(r"blk\.\d+\.")
_NUMBER = re.compile(r"\.\d+\.")
_SUFFIXES = ("weight", "bias")
_EXPERTS = ".experts."
# Reshapes of the converter that a shape gives away; tried where a plain copy fits nowhere.
_RESHAPES = ("as_row", "conv_channels", "flat")
_KINDS: tuple[tuple[str, ...], ...] = (
    *((), ("trunk",), ("draft",), ("dense",), ("moe",), ("routed",), ("unrouted",)),
    *(("linear_attention",), ("softmax_attention",)),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One reading of a pattern: a row, and the first checkpoint tensor that it makes in the first block that has it."""

    rule: Rule
    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Pattern:
    """A tensor name with `{bid}`, the blocks that have it, and its candidates: a stage is tried if none before fits."""

    tensor: str
    blocks: tuple[int, ...]
    stages: tuple[tuple[Candidate, ...], ...]

    @property
    def candidates(self) -> list[Candidate]:
        """All of them, the likeliest first."""
        return [candidate for stage in self.stages for candidate in stage]


Taken = Mapping[tuple[str, Shape], Sequence[ParameterUse]]
"""Checkpoint name and shape -> the parameters that the vLLM class writes from it; what it does not take is absent."""


def find_patterns(checkpoint: Checkpoint, blocks: Layout, aliases: Mapping[str, tuple[str, ...]]) -> list[Pattern]:
    """The patterns of the file's tensors that are not known to carry no parameter, in file order."""
    carriers: dict[str, list[str]] = {}
    for name in checkpoint.tensors:
        if name not in {skip.tensor for skip in ROPE_FACTORS}:
            carriers.setdefault(_BLOCK.sub("blk.{bid}.", name), []).append(name)
    found = []
    for pattern, names in carriers.items():
        bids = tuple(sorted(bid for name in names if (bid := block_of(name)) is not None))
        first = f"blk.{bids[0]}." if bids else ""
        shape = checkpoint.tensors[_BLOCK.sub(first, names[0])].shape
        found.append(Pattern(pattern, bids, _stages(pattern, bids, shape, _kind(blocks, bids), aliases)))
    return found


def choose(patterns: Sequence[Pattern], taken: Taken | None) -> dict[str, tuple[Rule, ...]]:
    """Pattern -> the rows that fit it, the chosen one first; those without a fit are absent.

    No two patterns fill the same parameter of a block: the one with the fewest fits chooses first. Without `taken`
    (no vLLM), and for what only a draft block has, it is the first alias.
    """
    fits = {pattern.tensor: _fits(pattern, taken) for pattern in patterns}
    filled: dict[tuple[str, str, str], set[int]] = {}
    chosen: dict[str, tuple[Rule, ...]] = {}
    for pattern in sorted(patterns, key=lambda pattern: len(fits[pattern.tensor])):
        bids = set(pattern.blocks) or {-1}
        rules = []
        for candidate in fits[pattern.tensor]:
            places = [_place(use) for use in (taken or {}).get((candidate.name, candidate.shape), ())]
            if not any(filled.get(place, set()) & bids for place in places):
                rules.append((candidate.rule, places))
        if rules:
            chosen[pattern.tensor] = tuple(rule for rule, _ in rules)
            for place in rules[0][1]:
                filled.setdefault(place, set()).update(bids)
    return {pattern.tensor: chosen[pattern.tensor] for pattern in patterns if pattern.tensor in chosen}


def inferred(architecture: str, rules: tuple[Rule, ...] = ()) -> Architecture:
    """A family of which nothing is known but these rows, and what carries no parameter in any family."""
    return Architecture((architecture,), "unknown", "unknown", rules, config=(), skips=ROPE_FACTORS)


def _fits(pattern: Pattern, taken: Taken | None) -> list[Candidate]:
    if taken is None or _only_draft(pattern):
        return pattern.candidates[:1]
    return [candidate for candidate in pattern.candidates if taken.get((candidate.name, candidate.shape))]


def _only_draft(pattern: Pattern) -> bool:
    return any("draft" in candidate.rule.blocks for candidate in pattern.candidates)


def _place(use: ParameterUse) -> tuple[str, str, str]:
    """What is filled, whatever the block."""
    return _NUMBER.sub(".*.", use.name, count=1), str(use.shard), str(use.expert)


def _kind(blocks: Layout, bids: tuple[int, ...]) -> tuple[str, ...] | None:
    """The kind that exactly these blocks are of; None when there is none."""
    return next((kind for kind in _KINDS if blocks.blocks(kind) == list(bids)), None) if bids else ()


def _stages(
    pattern: str,
    bids: tuple[int, ...],
    shape: Shape,
    kind: tuple[str, ...] | None,
    aliases: Mapping[str, tuple[str, ...]],
) -> tuple[tuple[Candidate, ...], ...]:
    base, _, suffix = pattern.rpartition(".")
    if suffix not in _SUFFIXES:
        base, suffix = pattern, ""
    modules = [module for module in aliases.get(base, ()) if "{bid}" in module or not bids]
    usual = [f"{module}.{suffix}" if suffix else module for module in modules]
    # Parameters that belong to no module of their own: A_log, sinks, e_score_correction_bias.
    unusual = [name for module in modules for name in (module, f"{module}_{suffix}")] if suffix else []
    bid = str(bids[0]) if bids else ""

    def candidates(names: Sequence[str], transforms: Sequence[str]) -> Iterator[Candidate]:
        for name, transform in ((name, transform) for name in names for transform in transforms):
            wanted = name.replace(_EXPERTS, f"{_EXPERTS}{{eid}}.") if transform == "experts" else name
            made = _first_shape(transform, shape)
            if made is not None and (transform != "experts" or wanted != name):
                optional = "only some blocks have it" if kind is None else None
                rule = Rule((pattern,), (wanted,), transform, optional, kind or ())
                yield Candidate(rule, wanted.replace("{bid}", bid).replace("{eid}", "0"), made)

    plain = ("experts", "copy") if base.endswith("_exps") else ("copy",)
    return (
        tuple(candidates(usual, plain)),
        tuple(candidates(unusual, plain)),
        tuple(candidates(usual + unusual, _RESHAPES)),
    )


def _first_shape(transform: str, shape: Shape) -> Shape | None:
    """The shape of what the transform makes first; None when it makes nothing else of the shape."""
    try:
        made = output_shapes(Transform(transform), [shape])[0]
    except (ValueError, IndexError):
        return None
    return None if transform != "copy" and made == shape else made
