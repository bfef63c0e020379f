"""The ggml type table: block and byte sizes of every tensor type a GGUF file can name.

Source: llama.cpp 0c1e57098, `ggml/include/ggml.h` (enum ggml_type) and `ggml/src/ggml-common.h` (block structs).
Names of ik_llama.cpp's own types: its `gguf-py/gguf/constants.py`, read in 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggufmap.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One tensor type: `block` elements are stored in `bytes` bytes (both 0 when not usable)."""

    id: int
    name: str
    block: int
    bytes: int
    problem: str | None = None

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` values; `elements` is a multiple of `block`."""
        return elements // self.block * self.bytes

    def require_usable(self, tensor: str) -> None:
        """Raise UnsupportedError when values of this type cannot be read."""
        if self.problem is not None:
            raise UnsupportedError(
                f"tensor {tensor} has ggml type {self.name} (id {self.id}): {self.problem}",
                hint="Re-quantise the model with a current llama.cpp, or use another file of it.",
            )


_KNOWN = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

# Ids that ggml once used and gave up (ggml.h keeps them commented out).
_RETIRED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# Types that only ik_llama.cpp has. Those from 202 on are types of ggml with their rows interleaved.
_IK_LLAMA = {
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
}

_REMOVED = "this type was removed from ggml"
_OF_IK_LLAMA = "a type that only ik_llama.cpp has"
_UNKNOWN = "this id is unknown here (it needs a llama.cpp newer than this table, or a fork such as ik_llama.cpp)"

TYPES: dict[int, GgmlType] = {
    **{id: GgmlType(id, name, block, size) for id, name, block, size in _KNOWN},
    **{id: GgmlType(id, name, 0, 0, _REMOVED) for id, name in _RETIRED.items()},
    **{id: GgmlType(id, name, 0, 0, _OF_IK_LLAMA) for id, name in _IK_LLAMA.items()},
}

FORK_TYPES = {
    42: GgmlType(
        42, "Q2_0_128", 128, 34, "a fork's Q2_0, with blocks of 128 values in 34 bytes; llama.cpp's has 64 in 18"
    )
}
"""Ids that a fork gave to a type of another size before ggml did. Only the offsets in a file tell which it means."""


BYTES = GgmlType(-1, "bytes", 1, 1)
"""No type of a file: rows of any type, seen as the bytes that they are stored in."""


def ggml_type(id: int) -> GgmlType:
    """The type with this id. An unknown id gives a type that can be listed but not read."""
    return TYPES.get(id) or GgmlType(id, f"unknown_{id}", 0, 0, _UNKNOWN)
