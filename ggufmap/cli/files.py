"""Results as files: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ggufmap.errors import FileError, UsageError
from ggufmap.whole import replace_file


def read_text(path: Path, limit: int) -> str:
    """The text of a file. Raises FileError when it is no text or has over `limit` bytes, UsageError when unreadable."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror}", hint="Check the path and its permissions.") from e
    if len(raw) > limit:
        raise FileError(f"{path}: larger than {limit} bytes", hint="Is it another file?")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FileError(f"{path}: not a text file: {e.reason} at byte {e.start}", hint="Is it another file?") from e


def write_text(path: Path, text: str) -> None:
    """Write `text` as the whole of a file, which is never seen half-written. Raises UsageError when it cannot be."""
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal
            path.write_text(text, encoding="utf-8")
            return
        final = path.resolve()
        replace_file(final, text.encode(), _mode(final))
    except OSError as e:
        raise UsageError(
            f"{path}: cannot be written: {e.strerror or e}", hint="Name a file in a folder that exists."
        ) from e


def _mode(path: Path) -> int:
    """The permissions that the file has, or those of a new one."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
