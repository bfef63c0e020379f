"""What the shell completes: models for MODEL, devices for `--device`; choices are the library's own."""

from __future__ import annotations

import os
import re
from pathlib import Path

_DEVICES = ("cpu", "sm_90", "sm_100", "sm_120")
# What any shell takes as it is. With other names in the folder its own completion of files is better: it can quote.
_PLAIN = re.compile(r"[\w.,:@%+=~/-]+")


def complete_model(incomplete: str) -> list[str]:
    """GGUF files and folders that begin like `incomplete`; an only folder is entered. Empty: the shell completes."""
    found = _entries(incomplete)
    while len(found) == 1 and found[0].endswith("/") and (inside := _entries(found[0])):
        found = inside
    return found if all(map(_PLAIN.fullmatch, found)) else []


def complete_device(incomplete: str) -> list[str]:
    """The devices that `--device` is mostly given."""
    return [device for device in _DEVICES if device.startswith(incomplete)]


def _entries(incomplete: str) -> list[str]:
    head, slash, start = incomplete.rpartition("/")
    try:
        entries = list(os.scandir(Path(head + slash).expanduser()))
    except (OSError, RuntimeError):  # no such folder, no such user's home
        return []
    names = sorted(
        entry.name + ("/" if entry.is_dir() else "")
        for entry in entries
        if entry.name.startswith(start)
        and (start or not entry.name.startswith("."))
        and (entry.is_dir() or entry.name.lower().endswith(".gguf"))
    )
    return [head + slash + name for name in names]
