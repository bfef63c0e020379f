"""What every kind of remote file has in common: ranges of bytes of one version of a file."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Protocol, TypeVar

from ggufmap.errors import FileError
from ggufmap.remote.limits import RemoteLimits

_T = TypeVar("_T")
_RANGE = re.compile(r"bytes (?P<first>\d{1,19})-(?P<last>\d{1,19})/(?P<size>\d{1,19})")
_RETRIED = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class Version:
    """What tells a file from another one under the same name. `etag` is empty when the server gives none."""

    size: int
    etag: str
    modified: str = ""
    """Last-Modified; only where there is no ETag."""

    @property
    def exact(self) -> bool:
        """Whether equal versions mean equal bytes: a weak ETag or a date does not promise that."""
        return bool(self.etag) and not self.etag.startswith("W/")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a range, and the version they are of."""

    data: bytes
    version: Version


class Reader(Protocol):
    """One remote file."""

    @property
    def name(self) -> str:
        """How messages call it: no credentials."""
        ...

    @property
    def cache_key(self) -> str | None:
        """What names it in the cache; None when it may not be cached."""
        ...

    def fetch(self, start: int, stop: int, known: Version | None) -> Part:
        """The bytes from `start` to `stop`, or to the end of the file.

        Raises FileError when they cannot be had, or when the file is not the `known` version any more.
        """
        ...


class RetryError(Exception):
    """Something that may pass: why, and how many seconds the server asks to wait."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


def persistent(call: Callable[[], _T], name: str, limits: RemoteLimits) -> _T:
    """`call`, tried again after a RetryError, each try within the limit of a request. Raises FileError at the end."""
    for attempt in range(limits.attempts):
        try:
            return _timed(call, limits.request_s)
        except RetryError as e:
            why, wait = str(e), e.after if e.after is not None else limits.backoff_s * 2**attempt
            if attempt + 1 < limits.attempts:
                time.sleep(min(wait, limits.longest_wait_s))
    raise FileError(
        f"{name}: {why} (tried {limits.attempts} times)", hint="Check the address and the connection, or try later."
    )


def _timed(call: Callable[[], _T], seconds: float) -> _T:
    """`call` in a thread of its own: a server that sends a byte now and then never runs into a socket's timeout."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as e:
            errors.append(e)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise RetryError(f"no whole answer within {seconds:g} s")
    return results[0]


def check_range(header: str, start: int, stop: int, name: str) -> tuple[int, int]:
    """The number of bytes that an answer with this Content-Range has, and the size of the file.

    Raises FileError when that is not what was asked for.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        raise FileError(f"{name}: the server gives a part without saying which (Content-Range: {shown(header)})")
    first, last, size = int(match["first"]), int(match["last"]), int(match["size"])
    if first != start or last != min(stop, size) - 1:
        raise FileError(f"{name}: bytes {start}-{stop - 1} were asked for, the server gives {shown(header)}")
    return last - first + 1, size


def check_version(found: Version, known: Version | None, name: str) -> None:
    """Raise FileError when `found` is not the version that the first answer had."""
    if known is not None and found != known:
        raise changed(name)


def changed(name: str) -> FileError:
    """The file is another one than that of the first answer."""
    return FileError(f"{name}: was changed on the server while it was read", hint="Start again.")


def refuse(status: int, name: str, hint: str | None, retry_after: str = "") -> None:
    """Raise what an HTTP status means: RetryError when it may pass, FileError otherwise."""
    if status in _RETRIED:
        raise RetryError(f"the server answers {status}", float(retry_after) if retry_after.isdecimal() else None)
    if status in (401, 403):
        raise FileError(f"{name}: access is refused (HTTP {status})", hint=hint)
    if status in (404, 410):
        raise FileError(f"{name}: is not there (HTTP {status})", hint="Check the address.")
    if status == 412:
        raise changed(name)
    raise FileError(f"{name}: the server answers {status} to a request for a range of bytes")


def reason(error: BaseException) -> str:
    """Why a connection failed, in words that hold no address: libraries quote whole URLs."""
    seen: BaseException | None = error
    todo, known = [error], set[int]()
    while todo:
        seen = todo.pop()
        if id(seen) in known:
            continue
        known.add(id(seen))
        if isinstance(seen, socket.gaierror):
            return "the host's name is not known"
        if isinstance(seen, TimeoutError) or "Timeout" in type(seen).__name__:
            return "no answer in time"
        if isinstance(seen, OSError) and seen.strerror and seen.errno is not None:
            return seen.strerror.lower()
        inner = [getattr(seen, "reason", None), seen.__cause__, seen.__context__, *seen.args]
        todo += [each for each in inner if isinstance(each, BaseException)]
    return f"the connection failed ({type(error).__name__})"


def shown(text: str) -> str:
    """Something that a server said, short enough for a message."""
    return repr(text if len(text) <= 80 else text[:80] + "...")
