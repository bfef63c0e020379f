"""The page's `unpackNames` and `unpackUses` (ggufmap/report/page/base.js) in Python: what its short lists stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def unpack_names(packed: Sequence[Any]) -> list[str]:
    """The names that `pack_names` was given."""
    if not packed or isinstance(packed[0], str):
        return list(packed)
    runs, count = packed
    return [f"{run[0]}{run[1] + i}{run[2]}" if run[1] is not None else run[0] for i in range(count) for run in runs]


def unpack_uses(packed: Sequence[Any]) -> list[dict[str, Any]]:
    """The uses that `pack_uses` was given."""
    if not packed or isinstance(packed[0], dict):
        return list(packed)
    runs, count, shards, experts = packed
    turns = len(runs)
    return [
        {
            "name": name,
            "shard": shards[i % turns],
            "experts": None if experts[i % turns] is None else experts[i % turns] + i // turns,
            "checkpoint": i,
        }
        for i, name in enumerate(unpack_names([runs, count]))
    ]
