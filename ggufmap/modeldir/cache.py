"""The cache folder and all-or-nothing writes into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ggufmap.errors import UsageError


def cache_root() -> Path:
    """`GGUFMAP_CACHE`, else `ggufmap` below the user's cache folder (XDG_CACHE_HOME or ~/.cache)."""
    chosen = os.environ.get("GGUFMAP_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggufmap"


_HINT = "Set GGUFMAP_CACHE to a folder with free space that you may write to."


def filled_once(
    folder: Path, fill: Callable[[Path], None], valid: Callable[[Path], bool], *, hint: str = _HINT
) -> Path:
    """`folder`, filled by `fill` unless it is there and `valid`.

    The files are written to a temporary sibling that takes the name when complete, so neither a crash nor a second
    process ever shows a half-written folder. Raises UsageError, with `hint`, when the folder cannot be written.
    """
    if valid(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as e:
        raise _unwritable(folder, e, hint) from e
    try:
        fill(scratch)
        _publish(scratch, folder, valid)
    except OSError as e:
        raise _unwritable(folder, e, hint) from e
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _publish(scratch: Path, folder: Path, valid: Callable[[Path], bool]) -> None:
    scratch.chmod(0o755)
    try:
        scratch.rename(folder)
        return
    except OSError:
        if valid(folder):  # another process was faster
            return
    stale = Path(tempfile.mkdtemp(prefix=f".{folder.name}.stale.", dir=folder.parent))
    folder.rename(stale / "old")
    scratch.rename(folder)
    shutil.rmtree(stale, ignore_errors=True)


def _unwritable(folder: Path, error: OSError, hint: str) -> UsageError:
    return UsageError(f"{error.filename or folder}: cannot be written: {error.strerror or error}", hint=hint)
