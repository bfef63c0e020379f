"""Permission bits do not bind root, and tests often run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODY = 65_534


@contextmanager
def without_root() -> Iterator[None]:
    """Be nobody for a while; nothing changes for a person who is not root anyway."""
    if os.geteuid():
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
