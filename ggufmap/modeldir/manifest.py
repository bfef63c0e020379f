"""The manifest of a model directory: which GGUF file it stands for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ggufmap.errors import FileError

MANIFEST = "ggufmap.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the loader needs to find the weights again and to know that they are the same."""

    gguf: Path
    header_hash: str
    draft: Path | None = None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a model directory. Raises FileError when there is none or it is broken."""
    file = folder / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        draft = data.get("draft")
        return Manifest(Path(data["gguf"]), str(data["header_hash"]), None if draft is None else Path(draft))
    except OSError as e:
        raise FileError(
            f"{folder}: is not a folder made by ggufmap ({MANIFEST}: {e.strerror})",
            hint="Start the server with `ggufmap serve MODEL`, or make the folder with `ggufmap config MODEL -o DIR`.",
        ) from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise FileError(f"{file}: broken manifest: {e!r}", hint="Delete the folder; it is made again.") from e
