"""How much a remote server may cost: bytes, seconds, attempts."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ggufmap.errors import FileError


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Bounds of one command. A server that goes beyond them is an error, never a hang."""

    first_bytes: int = 256 << 10
    """Of a file, asked for first: the header of a later split is smaller."""
    window_bytes: int = 4 << 20
    """At most, asked for at a time behind the first."""
    header_bytes: int = 128 << 20
    """Of one file; the largest header seen has 30 MB."""
    piece_bytes: int = 64 << 10
    """Of tensor data, read at a time: RoPE factors, which the config is derived from, have 256 bytes."""
    total_bytes: int = 512 << 20
    """Of all files together."""
    connect_s: float = 10.0
    silence_s: float = 20.0
    """Without a byte."""
    request_s: float = 120.0
    """For one range, from the first word to the last byte."""
    attempts: int = 4
    backoff_s: float = 0.5
    """Before the second attempt; doubled for each further one."""
    longest_wait_s: float = 30.0
    """However long a server's Retry-After asks for."""
    redirects: int = 5


class Meter:
    """Counts the bytes of a command over all threads. Raises FileError when they are more than the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.received = 0

    def add(self, count: int, name: str) -> None:
        """Account for `count` bytes of the file `name`."""
        with self._lock:
            self.received += count
            if self.received > self._limit:
                raise FileError(
                    f"{name}: more than {self._limit >> 20} MiB were fetched and the headers go on",
                    hint="No known model has such headers. Download the file to look at it.",
                )
