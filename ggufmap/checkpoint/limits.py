"""What a GGUF header may ask for. A file is hostile until proven otherwise: every limit is checked before use."""

from __future__ import annotations

KEYS = 100_000
"""Metadata pairs; the largest seen has about 80."""

TENSORS = 1_000_000
"""Tensors in one file; a 1 T-parameter MoE with unstacked experts stays below."""

KEY_BYTES = 65_535
"""The GGUF specification's own limit for a key."""

NAME_BYTES = 255
"""A tensor name; llama.cpp allows 63, forks built with longer names 127."""

STRING_BYTES = 64 << 20
"""One string value; the largest seen (a chat template) has 200 kB."""

STRING_ARRAY = 1 << 24
"""Strings in one array; the largest vocabulary seen has 262 k tokens and 515 k merges."""

ARRAY_DEPTH = 4
"""Nesting of arrays; no writer nests at all, the specification allows it."""

NESTED_ARRAYS = 100_000
"""Arrays inside arrays, in total: each costs a header of 12 bytes and a step of the parser."""

DIMENSIONS = 4
"""GGML_MAX_DIMS."""

ELEMENTS = (1 << 63) - 1
"""Elements of one tensor: ggml counts in int64."""

ALIGNMENT = (8, 1 << 20)
"""`general.alignment`: a power of two in this range; every writer uses 32, proposals cap at 1 MiB."""
