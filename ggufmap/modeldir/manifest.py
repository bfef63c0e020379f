"""The manifest of a model directory: which GGUF file it stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ggufmap.archs.base import JsonValue, Rule
from ggufmap.errors import FileError, UsageError

MANIFEST = "ggufmap.json"


@dataclass(frozen=True, slots=True)
class Packed:
    """What one model holds packed: GGUF tensors, and vLLM's layers (prefix -> shard id as text -> ggml type)."""

    tensors: tuple[str, ...]
    layers: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the loader needs to find the weights again and to know that they are the same."""

    gguf: Path
    header_hash: str
    draft: Path | None = None
    packed: Mapping[str, Packed] = field(default_factory=dict)
    """By role."""
    mmproj: Path | None = None
    rows: tuple[Rule, ...] = ()
    """Inferred ones, for a family that has none."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a model directory.

    Raises FileError when there is none or it is broken, UsageError when it was made from a remote file.
    """
    file = folder / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if "://" in data["gguf"]:
            raise UsageError(
                f"{folder}: was made from {data['gguf']}, whose weights are not on this machine",
                hint="Download the file and make the folder from that; `ggufmap serve hf://...` does both.",
            )
        draft, mmproj = (Path(data[key]) if data.get(key) is not None else None for key in ("draft", "mmproj"))
        packed = data.get("packed", {})
        return Manifest(
            Path(data["gguf"]),
            str(data["header_hash"]),
            draft,
            {role: Packed(tuple(found["tensors"]), found["layers"]) for role, found in packed.items()},
            mmproj,
            tuple(_rule(row) for row in data.get("rows", ())),
        )
    except OSError as e:
        raise FileError(
            f"{folder}: is not a folder made by ggufmap ({MANIFEST}: {e.strerror})",
            hint="Start the server with `ggufmap serve MODEL`, or make the folder with `ggufmap config MODEL -o DIR`.",
        ) from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FileError(f"{file}: broken manifest: {e!r}", hint="Delete the folder; it is made again.") from e


def rows_as_json(rows: Sequence[Rule]) -> list[JsonValue]:
    """Inferred rows as `read_manifest` understands them (they have no header values)."""
    return [[list(r.tensors), list(r.checkpoint), r.transform, r.optional, list(r.blocks)] for r in rows]


def _rule(row: list[Any]) -> Rule:
    tensors, checkpoint, transform, optional, blocks = row
    return Rule(tuple(tensors), tuple(checkpoint), transform, optional, tuple(blocks))
