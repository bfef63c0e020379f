"""The vocabulary of row sets: what an architecture is, as data.

A row set says three things of one `general.architecture`: which checkpoint (Hugging Face) tensors a GGUF tensor holds
and which value transform undoes the converter's, which `config.json` the header stands for, and which tensors carry
no parameter. `{bid}` stands for the block index, `{eid}` for the expert index, `{nextn}` for a draft block counted
from the first, `{place}` for a block counted among those of the row's kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


@dataclass(frozen=True, slots=True)
class HeaderValue:
    """A checkpoint tensor of one value that is no tensor in the file: header key `key` lists it for each block."""

    checkpoint: str
    key: str
    shape: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: GGUF tensor names -> checkpoint names, through a named transform.

    `transform` is `name` or `name:argument`; an argument is a number or a header key without its architecture prefix
    (`rope_rows:attention.head_count`). `optional` says why the row may have no tensor; None means it must have one.
    `blocks` are the kinds of block that have the row (all must hold): see `mapping/layout.py`. `values` come from the
    header and go where the row's tensors go.
    """

    tensors: tuple[str, ...]
    checkpoint: tuple[str, ...]
    transform: str = "copy"
    optional: str | None = None
    blocks: tuple[str, ...] = ()
    values: tuple[HeaderValue, ...] = ()

    @property
    def per_block(self) -> bool:
        """Whether the row repeats for every block."""
        return "{bid}" in self.tensors[0]


@dataclass(frozen=True, slots=True)
class Skip:
    """A tensor (or several: `*` at the end) that is known and carries no parameter, with the reason."""

    tensor: str
    reason: str
    blocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexerSharing:
    """Sparse-attention blocks that reuse another block's indexer when the header has no `indexer.types`.

    Block `b` runs its own iff `max(b - offset, 0) % period == 0`, in models of at least `context` positions.
    """

    period: int
    offset: int
    context: int


class Source(StrEnum):
    """Where a config value comes from."""

    HEADER = "header"  # a header key, without the architecture prefix
    ASSUMED = "assumed"  # a constant of the family that no header carries
    DERIVED = "derived"  # a named function of header and tensor table (modeldir/derive.py)
    TOKEN = "token"  # the id of a token, by its text


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One key of config.json.

    A HEADER row with a `fallback` uses it (as an assumed value) when the header lacks the key, an `optional` one is
    then left out, a `nullable` one null. `guess` marks a DERIVED value that the header does not prove; a TOKEN row with
    it takes the next free id where the vocabulary lacks the token.
    """

    key: str
    source: Source
    value: JsonValue
    fallback: JsonValue = None
    optional: bool = False
    nullable: bool = False
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Vision:
    """What a multimodal projector adds to a text model's config, in rows whose header keys are the projector's.

    `config` becomes `vision_config`, `outer` stands beside it, and the text model's keys go to `text_config`. `files`
    are what the processor reads (`preprocessor_config.json`), `tokens` tokenizer attributes that it looks up.
    """

    text_model_type: str
    config: tuple[ConfigRow, ...]
    outer: tuple[ConfigRow, ...]
    files: tuple[tuple[str, tuple[ConfigRow, ...]], ...]
    tokens: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """Another model class that writes the same architecture string; `when` names a test in `mapping/layout.py`.

    `rules` and `config` are its own rows, in place of the architecture's, where the checkpoint has other names.
    """

    when: str
    model_type: str
    model_class: str
    rules: tuple[Rule, ...] = ()
    config: tuple[ConfigRow, ...] = ()
    vision: Vision | None = None


@dataclass(frozen=True, slots=True)
class Architecture:
    """The row set of one family. `names` are the spellings of `general.architecture` it answers to."""

    names: tuple[str, ...]
    model_type: str
    model_class: str
    rules: tuple[Rule, ...]
    config: tuple[ConfigRow, ...]
    text_model_type: str | None = None
    """Set when vLLM's config class nests the text model's keys under `text_config`: their model type."""
    variants: tuple[Variant, ...] = ()
    skips: tuple[Skip, ...] = ()
    bf16_only: str | None = None
    """Why fp16 is refused by default (activations or weights leave its range); None when it is fine."""
    indexer_sharing: IndexerSharing | None = None
    full_attention_interval: int = 0
    """Every n-th block has full attention, the others linear, when the header does not say; 0: no such family."""
    draft_flags: tuple[ConfigRow, ...] = ()
    """Config keys that vLLM reads from the draft's config: written, and checked to arrive there."""
    vision: Vision | None = None
    """Set in the layout of a file with a multimodal projector that a variant is for."""


def block(tensor: str, checkpoint: str, transform: str = "copy", optional: str | None = None) -> Rule:
    """A row per block: `attn_q.weight` -> `self_attn.q_proj.weight`, below `blk.{bid}.` and `model.layers.{bid}.`."""
    return Rule((f"blk.{{bid}}.{tensor}",), (f"model.layers.{{bid}}.{checkpoint}",), transform, optional)


def top(tensor: str, checkpoint: str, transform: str = "copy", optional: str | None = None) -> Rule:
    """A row outside the blocks."""
    return Rule((tensor,), (checkpoint,), transform, optional)


def header(
    key: str, value: str, fallback: JsonValue = None, *, optional: bool = False, nullable: bool = False
) -> ConfigRow:
    """A config key read from a header key (without its architecture prefix)."""
    return ConfigRow(key, Source.HEADER, value, fallback, optional, nullable)


def assumed(**values: JsonValue) -> tuple[ConfigRow, ...]:
    """Config keys that no header carries, with the family's constant."""
    return tuple(ConfigRow(key, Source.ASSUMED, value) for key, value in values.items())


def derived(key: str, function: str | None = None, guess: bool = False) -> ConfigRow:
    """A config key computed by the function of this name in modeldir/derive.py (the key's own name by default)."""
    return ConfigRow(key, Source.DERIVED, function or key, guess=guess)


def token(key: str, text: str, *, guess: bool = False) -> ConfigRow:
    """A config key that is the id of the token `text`."""
    return ConfigRow(key, Source.TOKEN, text, guess=guess)


def without(rows: Iterable[ConfigRow], *keys: str) -> tuple[ConfigRow, ...]:
    """The config rows but those of these keys."""
    return tuple(row for row in rows if row.key not in keys)


def weights(rules: Iterable[tuple[str, str]], transform: str = "copy", optional: str | None = None) -> tuple[Rule, ...]:
    """Block rows for pairs of module names: `.weight` is added on both sides."""
    return tuple(block(f"{a}.weight", f"{b}.weight", transform, optional) for a, b in rules)


def biases(rules: Iterable[tuple[str, str]], transform: str = "copy") -> tuple[Rule, ...]:
    """Optional block rows for the biases of module pairs."""
    return tuple(block(f"{a}.bias", f"{b}.bias", transform, optional="this model has no such bias") for a, b in rules)


def renamed(rules: Iterable[Rule], old: str, new: str) -> tuple[Rule, ...]:
    """The rows with `old` replaced by `new` in their checkpoint names."""
    return tuple(replace(rule, checkpoint=tuple(x.replace(old, new) for x in rule.checkpoint)) for rule in rules)


def only(rules: Iterable[Rule], *blocks: str) -> tuple[Rule, ...]:
    """The rows, for blocks of these kinds only."""
    return tuple(replace(rule, blocks=(*rule.blocks, *blocks)) for rule in rules)
