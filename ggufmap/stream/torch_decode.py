"""Quantised blocks to values in torch operations, for a device that has no compiled decoder: bit-equal to gguf-py.

Every type is `values * scale` or `values * scale - minimum`: small whole numbers that tables give (exact), scales and
minima in float32 with the reference's products in the reference's order, then one rounding into the destination. Where
a power of two is multiplied in at another place than there, no float16 scale makes it over- or underflow: the bits are
the same. Each step is an operation of its own, which no device may fuse into another.

Nothing here waits for the device: shapes follow from the type, and tables go there once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ggufmap.checkpoint.ggml_types import TYPES
from ggufmap.errors import UnsupportedError
from ggufmap.stream import decode_tables as tables
from ggufmap.stream.decode_tables import fields, look_up

_CHUNK = 1 << 21  # values at once, at least a row: bounds the memory
_TYPE = {type.name: type for type in TYPES.values()}
_NIBBLE, _CRUMB = range(16), range(4)  # four bits, two bits


class Parts(NamedTuple):
    """Blocks before their last step. `values` has the dimensions (rows, blocks, ...), the others broadcast to it."""

    values: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None = None


def decode(packed: torch.Tensor, ggml_type: str, out: torch.Tensor | None = None) -> torch.Tensor:
    """Values of whole rows of blocks: uint8 (rows, bytes of a row) to (rows, columns), on the device of `packed`.

    Returns `out`, of any strides and dtype float32, bfloat16 or float16, rounded to nearest even as torch's `.to` does;
    without it new float32. Temporary memory: at most 11 bytes a value, of 2**21 values or one row at once; at most 12
    operations on the device for as many, 13 where the bytes lie unfit for views and are copied first.

    Raises UnsupportedError for a type that is not in DECODED, ValueError for shapes that do not fit.
    """
    if ggml_type not in DECODED:
        raise UnsupportedError(f"no decoder in torch for ggml type {ggml_type}")
    type = _TYPE[ggml_type]
    rows, row_bytes = packed.shape
    columns, left = row_bytes // type.bytes * type.block, row_bytes % type.bytes
    if left or packed.dtype is not torch.uint8:
        raise ValueError(f"{ggml_type} rows are uint8 in blocks of {type.bytes}: {packed.dtype}, {row_bytes} a row")
    if out is None:
        out = torch.empty(rows, columns, dtype=torch.float32, device=packed.device)
    elif out.shape != (rows, columns):
        raise ValueError(f"{rows} rows of {columns} {ggml_type} values do not fit into {tuple(out.shape)}")
    if not packed.numel():
        return out
    step = max(1, _CHUNK // columns)
    for first in range(0, rows, step):
        part, place = _even(packed[first : first + step]), out[first : first + step]
        if ggml_type in _PLAIN:
            place.copy_(part.view(_PLAIN[ggml_type]))
        else:
            _finish(_BLOCKS[ggml_type](part.unflatten(1, (-1, type.bytes))), place)
    return out


def _even(packed: torch.Tensor) -> torch.Tensor:
    """The same bytes, contiguous and at an even address, as views of two-byte numbers need: a copy if they are not."""
    if packed.is_contiguous() and packed.storage_offset() % 2 == 0 and packed.data_ptr() % 2 == 0:
        return packed
    return packed.clone(memory_format=torch.contiguous_format)


def _finish(parts: Parts, out: torch.Tensor) -> None:
    out = out.unflatten(1, parts.values.shape[1:])
    if parts.minimum is None:
        torch.mul(parts.values, parts.scale, out=out)
    else:
        torch.sub(parts.values * parts.scale, parts.minimum, out=out)


def _halves(blocks: torch.Tensor, at: int, count: int = 1) -> torch.Tensor:
    """`count` float16 numbers at byte `at` of each block, as float32."""
    return blocks[..., at : at + 2 * count].view(torch.float16).float()


# The functions of the types. Their docstrings name the bytes of a block (ggml-common.h has the structs). What a byte
# holds, a row of a table, is the last dimension: values that lie far apart get to their place by a view, not by a copy.


def _q4_0(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, values 16, whose low halves come first."""
    return Parts(look_up(blocks[..., 2:].long(), fields, 4, range(-8, 8)).mT, _halves(blocks, 0)[..., None])


def _q4_1(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, m 2, values 16."""
    d, m = _halves(blocks, 0, 2)[..., None, None].unbind(2)
    return Parts(look_up(blocks[..., 4:].long(), fields, 4, _NIBBLE).mT, d, -m)


def _q5_0(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, fifth bits 4, values 16."""
    return Parts(_five_bits(blocks[..., 2:], (-16, 0)), _halves(blocks, 0)[..., None])


def _q5_1(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, m 2, fifth bits 4, values 16."""
    d, m = _halves(blocks, 0, 2)[..., None, None].unbind(2)
    return Parts(_five_bits(blocks[..., 4:], (0, 16)), d, -m)


def _five_bits(packed: torch.Tensor, fifth: tuple[int, int]) -> torch.Tensor:
    index = packed.long()
    high = look_up(index[..., :4], fields, 1, fifth).flatten(-2).unflatten(-1, (2, 16))
    return look_up(index[..., 4:], fields, 4, _NIBBLE).mT + high


def _q8_0(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, values 32."""
    return Parts(blocks[..., 2:].view(torch.int8), _halves(blocks, 0))


def _q2_k(blocks: torch.Tensor) -> Parts:
    """Bytes: scales and minima 16, values 64, d 2, dmin 2. 2 x 32 bytes, of four values each, 32 apart."""
    index = blocks[..., :80].long()
    scales = look_up(index[..., :16], fields, 4, _NIBBLE) * _halves(blocks, 80, 2)[..., None, :]
    values = look_up(index[..., 16:], fields, 2, _CRUMB).unflatten(-2, (2, 32)).mT
    return Parts(values.unflatten(-1, (2, 16)), *scales.unflatten(-2, (2, 4, 2, 1)).unbind(-1))


def _q3_k(blocks: torch.Tensor) -> Parts:
    """Bytes: third bits 32, values 2 x 32, scales 8 + 4, d 2.

    Scale 8 i + 4 j + k is in half i of byte 4 j + k, and its high bits in crumb 2 i + j of byte k.
    """
    index = blocks[..., :108].long()
    high = look_up(index[..., :32], fields, 1, (-4, 0)).mT.unflatten(-2, (2, 4))
    values = look_up(index[..., 32:96], fields, 2, _CRUMB).unflatten(-2, (2, 32)).mT + high
    six = look_up(index[..., 96:104], fields, 4, _NIBBLE).mT.unflatten(-1, (2, 4))
    six = six + look_up(index[..., 104:], fields, 2, range(-32, 32, 16)).mT.unflatten(-2, (2, 2))
    scale = _halves(blocks, 108)[..., None, None] * six
    return Parts(values.unflatten(-1, (2, 16)).unflatten(-3, (2, 2)), scale.unflatten(-1, (2, 2))[..., None])


def _q4_k(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, dmin 2, scales and minima 12, values 4 x 32."""
    index = blocks[..., 4:].long()
    values = look_up(index[..., 12:], fields, 4, _NIBBLE).unflatten(-2, (2, 2, 32)).mT
    return Parts(values, *_k_scales(index, _halves(blocks, 0, 2)))


def _q5_k(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, dmin 2, scales and minima 12, fifth bits 32 (their bit i is of the i-th 32 values), values 4 x 32."""
    index = blocks[..., 4:].long()
    high = look_up(index[..., 12:44], fields, 1, (0, 16)).mT.unflatten(-2, (2, 2, 2))
    values = look_up(index[..., 44:], fields, 4, _NIBBLE).unflatten(-2, (2, 2, 32)).mT + high
    return Parts(values, *_k_scales(index, _halves(blocks, 0, 2)))


def _k_scales(index: torch.Tensor, halves: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight minima of six bits, times d and dmin: each (rows, blocks, 2, 2, 2, 1).

    Bytes: four scales, four minima, whose high bits belong to the other four, which have their low bits in four more.
    """
    pairs = look_up(index[..., :8], tables.scale_six).unflatten(-2, (2, 4))
    pairs[..., 1].add_(look_up(index[..., 8:12], fields, 4, _NIBBLE).mT)
    scale, minimum = (pairs * halves[..., None, None]).mT.unflatten(-1, (2, 2))[..., None].unbind(2)
    return scale, minimum


def _q6_k(blocks: torch.Tensor) -> Parts:
    """Bytes: low halves 2 x 64, of two values, 64 apart; high bits 2 x 32, of four values, 32 apart; scales 16, d 2."""
    index = blocks[..., :192].long()
    low = look_up(index[..., :128], fields, 4, _NIBBLE).unflatten(-2, (2, 2, 32)).movedim(-1, -3)
    high = look_up(index[..., 128:], fields, 2, range(-32, 32, 16)).unflatten(-2, (2, 32)).mT
    scale = _halves(blocks, 208) * blocks[..., 192:208].view(torch.int8)
    values = low + high.unflatten(-2, (2, 2))
    return Parts(values.unflatten(-1, (2, 16)), scale.unflatten(-1, (2, 2, 2, 2))[..., None])


def _tq1_0(blocks: torch.Tensor) -> Parts:
    """Bytes: values 48, values 4, d 2."""
    digits = look_up(blocks[..., :52].long(), tables.trits).flatten(-2)
    return Parts(digits.index_select(-1, tables.constant(blocks.device, tables.trit_order)), _halves(blocks, 52))


def _tq2_0(blocks: torch.Tensor) -> Parts:
    """Bytes: values 2 x 32, of four values, 32 apart; d 2."""
    values = look_up(blocks[..., :64].long(), fields, 2, range(-1, 3)).unflatten(-2, (2, 32)).mT
    return Parts(values, _halves(blocks, 64)[..., None, None])


def _mxfp4(blocks: torch.Tensor) -> Parts:
    """Bytes: exponent 1, values 16."""
    index = blocks.long()
    return Parts(look_up(index[..., 1:], tables.nibbles, "MXFP4").mT, look_up(index[..., :1], tables.mxfp4_scales))


def _nvfp4(blocks: torch.Tensor) -> Parts:
    """Bytes: scales 4, values 4 x 8."""
    index = blocks.long()
    values = look_up(index[..., 4:], tables.nibbles, "NVFP4").unflatten(-2, (4, 8)).mT
    return Parts(values, look_up(index[..., :4], tables.nvfp4_scales)[..., None])


def _iq4_nl(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, values 16."""
    return Parts(look_up(blocks[..., 2:].long(), tables.nibbles, "IQ4_NL").mT, _halves(blocks, 0)[..., None])


def _iq4_xs(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, high bits of scales 2, low bits 4, values 8 x 16."""
    index = blocks[..., 2:].long()
    six = look_up(index[..., 2:6], fields, 4, _NIBBLE).flatten(-2)
    six = six + look_up(index[..., :2], fields, 2, range(-32, 32, 16)).flatten(-2)
    values = look_up(index[..., 6:], tables.nibbles, "IQ4_NL").unflatten(-2, (8, 16)).mT
    return Parts(values, (_halves(blocks, 0) * six)[..., None, None])


def _iq2_xxs(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, 8 x (4 grid indices 4, signs and scale 4)."""
    packed = blocks[..., 2:].clone(memory_format=torch.contiguous_format)
    signs, scale = _signs_and_scale(packed.view(torch.int32).unflatten(-1, (8, 2))[..., 1:], 0.25)
    index = packed.unflatten(-1, (8, 8))[..., :4].long()
    return Parts(look_up(index, tables.grid, "IQ2_XXS") * signs, _halves(blocks, 0)[..., None, None] * scale)


def _iq3_xxs(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, grid indices 64, 8 x (signs and scale 4)."""
    packed = blocks[..., 66:].clone(memory_format=torch.contiguous_format)
    signs, scale = _signs_and_scale(packed.view(torch.int32)[..., None], 0.5)
    values = look_up(blocks[..., 2:66].long(), tables.grid, "IQ3_XXS").flatten(-2).unflatten(-1, (8, 4, 8))
    return Parts(values * signs, _halves(blocks, 0)[..., None, None] * scale)


def _signs_and_scale(words: torch.Tensor, step: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of int32 words (..., 8, 1) four times seven bits of signs, (..., 8, 4, 8), and scales, (..., 8, 1, 1)."""
    index = words >> tables.constant(words.device, tables.sign_shifts) & 127
    return look_up(index[..., :4], tables.signs), look_up(index[..., 4:], tables.xxs_scales, step)


def _iq2_xs(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, grid indices and signs 32 x 2, scales 8."""
    values = look_up(blocks[..., 2:66].view(torch.int16).long(), tables.signed_grid)
    return Parts(values.unflatten(-2, (8, 2, 2)), _iq2_scale(blocks, blocks[..., 66:].long()))


def _iq2_s(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, grid indices 32, signs 32, high bits of indices 8, scales 8."""
    index = blocks[..., 2:].long()
    high = look_up(index[..., 64:72], fields, 2, _CRUMB).flatten(-2)
    values = look_up(torch.add(index[..., :32], high, alpha=256), tables.grid, "IQ2_S")
    values = values * look_up(index[..., 32:64], fields, 1, (1, -1))
    return Parts(values.unflatten(-2, (8, 2, 2)), _iq2_scale(blocks, index[..., 72:]))


_IQ2_STEPS = tuple((0.5 + scale) * 0.25 for scale in range(16))


def _iq2_scale(blocks: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(rows, blocks, 8, 2, 1, 1)."""
    return (_halves(blocks, 0)[..., None] * look_up(index, fields, 4, _IQ2_STEPS))[..., None, None]


def _iq3_s(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, grid indices 64, high bits of indices 8, signs 32, scales 4."""
    index = blocks[..., 2:].long()
    high = look_up(index[..., 64:72], fields, 1, (0, 1)).flatten(-2)
    values = look_up(torch.add(index[..., :64], high, alpha=256), tables.grid, "IQ3_S").flatten(-2)
    values = values * look_up(index[..., 72:104], fields, 1, (1, -1)).flatten(-2)
    scale = _halves(blocks, 0)[..., None] * look_up(index[..., 104:], fields, 4, range(1, 33, 2))
    return Parts(values.unflatten(-1, (4, 2, 32)), scale[..., None])


def _iq1_s(blocks: torch.Tensor) -> Parts:
    """Bytes: d 2, grid indices 32, 8 x (high bits of four indices, scale, sign of delta 2)."""
    words = blocks[..., 34:].view(torch.int16).long()
    high = look_up(words, tables.iq1_s_high).flatten(-2)
    values = look_up(torch.add(blocks[..., 2:34].long(), high, alpha=256), tables.iq1_grid)
    scale = _halves(blocks, 0)[..., None] * look_up(words, tables.iq1_s_scales)
    return Parts(values.unflatten(-2, (8, 4)), scale[..., None])


def _iq1_m(blocks: torch.Tensor) -> Parts:
    """Bytes: grid indices 32, high bits of indices and sign of delta 16, 4 x (scales and a quarter of d 2)."""
    index = blocks[..., :48].long()
    high = look_up(index[..., 32:], fields, 4, _NIBBLE).flatten(-2)
    values = look_up(torch.add(index[..., :32], high, alpha=256), tables.iq1_grid)
    quarters = blocks[..., 49::2]
    d = (quarters[..., ::2] >> 4 | quarters[..., 1::2] & 240).view(torch.float16).float()
    scale = d[..., None] * look_up(blocks[..., 48:].view(torch.int16).long(), tables.iq1_m_scales)
    return Parts(values.unflatten(-2, (4, 4, 2)), scale[..., None, None])


_PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}

_BLOCKS: dict[str, Callable[[torch.Tensor], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}

DECODED = frozenset([*_PLAIN, *_BLOCKS])
"""Names of the ggml types that `decode` knows: all that gguf-py decodes."""
