"""Tables that decoders look bytes up in: made from gguf-py's constants, kept on each device that asks for them.

A row of a table is at most eight bytes and is fetched as one integer: a byte's fields, or eight grid values, cost one
gather. All grids, signs and lists of values are gguf-py's own (`gguf.quants`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Rows = npt.NDArray[Any]
"""A table, shape (indices, values of an index)."""

_BYTES = np.arange(1 << 8)
_WORDS = np.arange(1 << 16)


def look_up(index: torch.Tensor, make: Callable[..., Rows], *arguments: Any) -> torch.Tensor:
    """Rows `index` (int64) of the table `make(*arguments)`: shape (*index.shape, values of a row).

    Negative indices count from the end, so that words read as int16 find their unsigned place in a table of 65536 rows.
    """
    packed, dtype = _on_device(index.device, make, *arguments)
    return packed.take(index).view(dtype).unflatten(-1, (index.shape[-1], -1))


@cache
def constant(device: torch.device, make: Callable[[], Rows]) -> torch.Tensor:
    """The numbers `make()` on the device, as they are."""
    return torch.from_numpy(make()).to(device)


@cache
def _on_device(device: torch.device, make: Callable[..., Rows], *arguments: Any) -> tuple[torch.Tensor, torch.dtype]:
    """The table with each row as one integer, and the dtype of its values. The copy has arrived when this returns."""
    rows = np.ascontiguousarray(make(*arguments))
    packed = rows.view(f"i{rows[0].nbytes}")[:, 0]
    return torch.from_numpy(packed).to(device), torch.from_numpy(rows).dtype


def fields(bits: int, values: range | tuple[float, ...]) -> Rows:
    """A byte's fields of `bits` bits, lowest first, each as the value at its place in `values`."""
    shifts = np.arange(0, 8, bits)
    named = np.array(values, np.int8 if all(isinstance(value, int) for value in values) else np.float32)
    return np.asarray(named[(_BYTES[:, None] >> shifts) & ((1 << bits) - 1)])


def listed(name: str) -> Rows:
    """The sixteen values of a type that lists them."""
    return np.array(_type(name).kvalues, np.int8)


def nibbles(name: str) -> Rows:
    """A byte's two halves as values of a type that lists them."""
    return fields(4, _type(name).kvalues)


def scale_six() -> Rows:
    """A byte of K-quants' scales: its low six bits, and the high two as bits 4 and 5 of another scale."""
    return np.stack([_BYTES & 63, (_BYTES >> 2) & 48], axis=1).astype(np.int8)


def trits() -> Rows:
    """TQ1_0: a byte's five ternary digits, and three places that mean nothing."""
    fractions = (_BYTES[:, None] * 3 ** np.arange(8)) % 256
    return ((fractions * 3 >> 8) - 1).astype(np.int8)


def trit_order() -> Rows:
    """TQ1_0: where each value lies among the eight places of 52 bytes, of which 32, 16 and 4 take turns."""
    places = np.arange(52 * 8).reshape(52, 8)
    parts = [places[:32, :5], places[32:48, :5], places[48:, :4]]
    return np.concatenate([part.T.reshape(-1) for part in parts])


def mxfp4_scales() -> Rows:
    """MXFP4: half of the power of two that a byte stands for."""
    return np.asarray(_type("MXFP4").e8m0_to_fp32_half(_BYTES.astype(np.uint8)), np.float32)[:, None]


def nvfp4_scales() -> Rows:
    """NVFP4: half of the unsigned E4M3 number that a byte stands for."""
    return np.asarray(_type("NVFP4").ue4m3_to_fp32(_BYTES.astype(np.uint8)), np.float32)[:, None]


def grid(name: str) -> Rows:
    """A type's grid, four or eight whole numbers a row."""
    kind = _type(name)
    kind.init_grid()
    return np.asarray(kind.grid).reshape(kind.grid_shape).astype(np.int8)


def signs() -> Rows:
    """Eight signs in seven bits, the last one by parity."""
    return np.asarray(fields(1, (1, -1))[np.frombuffer(_type("IQ2_XXS").ksigns, np.uint8)])


def sign_shifts() -> Rows:
    """IQ2_XXS and IQ3_XXS: where the four times seven bits of signs, and the scale, begin in a word."""
    return np.array([0, 7, 14, 21, 28])


def signed_grid() -> Rows:
    """IQ2_XS: a word of nine bits of grid and seven of signs."""
    return np.asarray(grid("IQ2_XS")[_WORDS & 511] * signs()[_WORDS >> 9])


def xxs_scales(step: float) -> Rows:
    """IQ2_XXS and IQ3_XXS: (0.5 + scale) * step, of the low four bits of seven."""
    return ((0.5 + (np.arange(128) & 15)) * step).astype(np.float32)[:, None]


def iq1_grid() -> Rows:
    """IQ1_S and IQ1_M: the grid plus delta, then minus delta (bit 11 of an index), in units of delta."""
    values, delta = grid("IQ1_S").astype(np.float32), _iq1_delta()
    return np.array(np.concatenate([values + delta, values - delta]) / delta).astype(np.int8)


def iq1_s_high() -> Rows:
    """IQ1_S: of a word, bits 8 to 10 of four indices, and the sign of delta as bit 11 of each."""
    return np.array(_three_bits() + 8 * (_WORDS[:, None] >> 15), np.int8)


def iq1_s_scales() -> Rows:
    """IQ1_S: a word's scale, times delta."""
    scales = 2 * (_WORDS[:, None] >> 12 & 7) + 1
    return np.array(scales * _iq1_delta(), np.float32)


def iq1_m_scales() -> Rows:
    """IQ1_M: a word's four scales, times delta, which float16 holds exactly."""
    return np.array((2 * _three_bits() + 1) * _iq1_delta(), np.float16)


def _iq1_delta() -> float:
    return float(_type("IQ1_S").delta)  # 1/8, IQ1_M's too


def _three_bits() -> Rows:
    """The four lowest times three bits of each word."""
    return np.asarray(_WORDS[:, None] >> np.arange(0, 12, 3) & 7)


def _type(name: str) -> Any:
    import gguf

    return getattr(gguf.quants, name)
