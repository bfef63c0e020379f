"""Headers of remote files, kept between commands: one per address, valid for the version that it is of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ggufmap.errors import UsageError
from ggufmap.modeldir.cache import cache_root, filled_once
from ggufmap.remote.reader import Version

_HEADER, _ABOUT = "header.bin", "about.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A header and the version of the file that it is the header of."""

    version: Version
    header: bytes


def find(key: str | None) -> Entry | None:
    """The entry of the address `key`, if there is one and its bytes have the SHA-256 that was written with them."""
    return None if key is None else _read(_folder(key))


def keep(key: str | None, entry: Entry) -> None:
    """Keep `entry` for the address `key`, in place of another version's. Nothing happens where it cannot be written."""
    if key is None:
        return

    def fill(folder: Path) -> None:
        about = {"version": asdict(entry.version), "sha256": hashlib.sha256(entry.header).hexdigest()}
        (folder / _HEADER).write_bytes(entry.header)
        (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")

    try:
        filled_once(_folder(key), fill, lambda folder: _read(folder) == entry)
    except UsageError:
        return  # a cache that cannot be written makes the next command slower, no more


def _folder(key: str) -> Path:
    return cache_root() / "headers" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _read(folder: Path) -> Entry | None:
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        header = (folder / _HEADER).read_bytes()
        found = Entry(Version(**about["version"]), header)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if hashlib.sha256(header).hexdigest() == about["sha256"] else None
