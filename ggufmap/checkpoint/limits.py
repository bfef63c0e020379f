"""What a GGUF header may ask for, as one table. A file is hostile until proven otherwise: each is checked first.

Together they bound what parsing takes: at most 64 MiB and four times the header in memory, and two seconds for every
100 MB of header begun (tests/hostile/test_bounds.py). docs/security.md shows the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest (and least) value of one thing in a header, and why it is that."""

    what: str
    most: int
    why: str
    least: int = 0


KEYS = Limit("metadata count", 100_000, "the largest file seen has about 80")
TENSORS = Limit(
    "tensor count", 100_000, "a 1 T-parameter MoE with unstacked experts has 70,000; each takes 600 bytes of memory"
)
KEY_BYTES = Limit("metadata key length", 65_535, "the GGUF specification's own", least=1)
NAME_BYTES = Limit("tensor name length", 255, "llama.cpp allows 63, forks with longer names 127", least=1)
STRING_BYTES = Limit("string length", 64 << 20, "the largest seen, a chat template, has 200 kB")
STRINGS = Limit("strings in arrays, all together", 1 << 21, "the largest vocabulary has 262,144 tokens, 514,906 merges")
ARRAY_DEPTH = Limit("nesting of arrays", 4, "no writer nests at all, the specification allows it", least=1)
NESTED_ARRAYS = Limit("arrays inside arrays, all together", 10_000, "each costs 12 bytes of header, 200 of memory")
DIMENSIONS = Limit("dimensions", 4, "GGML_MAX_DIMS")
TYPE = Limit("ggml type", 1023, "ggml has 43, forks use ids up to 399; those unknown here can be listed, not read")
ELEMENTS = Limit(
    "elements of a tensor", (1 << 63) - 1, "ggml counts in int64; a size in bytes has no limit but the file"
)
LIST = Limit(
    "entries of a list that is used", 1 << 21, "as many as strings: none has more entries than tokens or merges"
)
ARRAY_LENGTH = Limit("array length", (1 << 63) - 1, "the bytes that remain are the real limit")
ALIGNMENT = Limit(
    "general.alignment",
    1 << 20,
    "u32, a power of two; a multiple of 8 by the specification, 32 in every writer",
    least=8,
)

TABLE = (
    KEYS,
    TENSORS,
    KEY_BYTES,
    NAME_BYTES,
    STRING_BYTES,
    STRINGS,
    ARRAY_DEPTH,
    NESTED_ARRAYS,
    DIMENSIONS,
    TYPE,
    ELEMENTS,
    ARRAY_LENGTH,
    LIST,
    ALIGNMENT,
)
"""All of them, in the order in which a parser meets them."""
