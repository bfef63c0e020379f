"""Config rows evaluated: a header key, a constant of the family, a named function, the id of a token."""

from __future__ import annotations

from ggufmap.archs.base import ConfigRow, JsonValue, Source
from ggufmap.checkpoint import Metadata
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.derive import DERIVED


def evaluate(row: ConfigRow, blocks: Layout, metadata: Metadata, prefix: str) -> tuple[JsonValue, bool]:
    """The row's value and whether it is assumed. `prefix` stands before the header keys in `metadata`.

    Raises MetadataError or FileError when the header does not say it.
    """
    if row.source is Source.ASSUMED:
        return row.value, True
    if row.source is Source.DERIVED:
        return _derived(row, blocks), row.guess
    if row.source is Source.TOKEN:
        return _token(row, blocks)
    key = f"{prefix}.{row.value}"
    if key not in metadata:
        if row.fallback is None and not (row.optional or row.nullable):
            metadata.number(key)  # raises, naming the key
        return row.fallback, row.fallback is not None
    read = metadata.number if metadata[key].type.name.startswith("F") else metadata.integer
    return read(key), False


def _derived(row: ConfigRow, blocks: Layout) -> JsonValue:
    derive = DERIVED[str(row.value)]
    try:
        return derive(blocks)
    except (ArithmeticError, LookupError, ValueError) as e:  # a header may hold any numbers and shapes
        reason = f"config key {row.key} cannot be computed from this header: {e}"
        raise FileError(f"{blocks.checkpoint.path}: {reason}") from e


def _token(row: ConfigRow, blocks: Layout) -> tuple[JsonValue, bool]:
    tokens = blocks.checkpoint.metadata.raw_strings("tokenizer.ggml.tokens")
    try:
        return tokens.index(str(row.value).encode()), False
    except ValueError:
        if row.guess:
            return len(tokens), True
    raise FileError(f"{blocks.checkpoint.path}: the vocabulary has no token {row.value!r}, which images need")
