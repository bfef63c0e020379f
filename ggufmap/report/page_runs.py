"""Lists of numbered names, written short: a stack of 256 experts is one run, not 256 names.

A list is `[[run, ...], count]`: `count` rounds of the runs in turn. A run is `[before, start, after]`; its name in
round `i` is `before + (start + i) + after`, or `before` alone where `start` is null. What fits no run is a plain list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"(?<=\.)(?:0|[1-9]\d{0,8})(?=\.)")
_TURNS = (1, 2, 3)
Run = list[Any]


def pack_names(names: Sequence[str]) -> list[Any]:
    """`names` as runs in turn, or as they are."""
    for turns in _TURNS:
        if len(names) > turns and len(names) % turns == 0:
            runs = [_run(names[turn::turns]) for turn in range(turns)]
            if all(runs):
                return [runs, len(names) // turns]
    return list(names)


def _run(names: Sequence[str]) -> Run | None:
    """The run that gives `names`; None when there is none."""
    if len(set(names)) == 1:
        return [names[0], None, ""]
    for match in _NUMBER.finditer(names[0]):
        before, after, start = names[0][: match.start()], names[0][match.end() :], int(match[0])
        if all(name == f"{before}{start + i}{after}" for i, name in enumerate(names)):
            return [before, start, after]
    return None


def pack_uses(uses: Sequence[Mapping[str, Any]], names: int) -> list[Any]:
    """Parameter uses of a tensor that makes `names` checkpoint tensors.

    Where each name has one use: `[runs of parameter names, count, shards in turn, first experts in turn]`. Else a list
    of objects `{"name", "shard", "experts", "checkpoint"}`, as they are.
    """
    if names > 1 and [use["checkpoint"] for use in uses] == list(range(names)):
        packed = pack_names([use["name"] for use in uses])
        if packed and not isinstance(packed[0], str):
            runs, count = packed
            turns = len(runs)
            experts = [use["experts"] for use in uses[:turns]]
            if all(
                use["shard"] == uses[i % turns]["shard"] and use["experts"] == _expert(experts[i % turns], i // turns)
                for i, use in enumerate(uses)
            ):
                return [runs, count, [use["shard"] for use in uses[:turns]], experts]
    return [dict(use) for use in uses]


def _expert(first: int | None, turn: int) -> int | None:
    return None if first is None else first + turn
