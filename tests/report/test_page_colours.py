"""The colours of the page's script stay apart for people who see fewer of them, in both themes."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from support.assets import ROOT

# Machado, Oliveira, Fernandes 2009, severity 1.0: what is left of linear RGB.
SIMULATED = {
    "full vision": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
# Types that stand beside one another in files of llama.cpp's quantisation mixes (Q4_K_M, UD-Q4_K_XL, Q2_K, ...).
TOGETHER = ("Q4_K", "Q6_K", "Q8_0", "Q5_K", "Q3_K", "Q2_K", "F32")
JUST_NOTICEABLE = 2.3  # CIE76


def colours(name: str) -> dict[str, str]:
    script = (ROOT / "ggufmap" / "report" / "page" / "base.js").read_text(encoding="utf-8")
    table = re.search(rf"const {name} = \{{(.*?)\}};", script, re.DOTALL)
    assert table is not None
    return dict(re.findall(r"(\w+): '(#[0-9a-f]{6})'", table[1]))


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour: str, sight: str) -> np.ndarray:
    xyz = XYZ @ np.clip(np.array(SIMULATED[sight]) @ linear(colour), 0, 1) / (XYZ @ np.ones(3))
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIMULATED)
def test_common_types_stay_apart(sight: str) -> None:
    table = colours("TYPE_COLOURS")
    apart = {
        (a, b): float(np.linalg.norm(lab(table[a], sight) - lab(table[b], sight))) for a, b in combinations(TOGETHER, 2)
    }
    closest = min(apart, key=lambda pair: apart[pair])
    assert apart[closest] > 4 * JUST_NOTICEABLE, (closest, apart[closest])
