"""A web server on loopback that serves files by ranges, well or badly, and writes down what it was asked.

    with HttpServer(folder, Fault.NONE) as server:
        server.url("m.gguf"); server.requests; server.sent

`sent` are bytes of bodies. A fault may be for the first `times` requests only.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

_CHUNK = 64 << 10


class Fault(enum.Enum):
    """What is wrong with a server."""

    NONE = "none"
    IGNORES_RANGES = "answers 200 with the whole file"
    IGNORES_RANGES_NO_LENGTH = "and does not say how long that is"
    OTHER_RANGE = "gives other bytes than asked for"
    NO_CONTENT_RANGE = "206 without Content-Range"
    ENDLESS = "206 with a body that never ends"
    ENDLESS_WHOLE = "200 with a body that never ends"
    TOO_LONG = "more bytes than the range has"
    SHORT = "a body that ends early"
    DROPS = "closes the connection without an answer"
    SLOW = "a byte now and then"
    SLOW_HEADERS = "a header now and then"
    BUSY = "503 with Retry-After"
    TOO_MANY = "429 without Retry-After"
    NEVER_NOW = "429 with a Retry-After of an hour"
    GZIP = "says that the body is encoded"
    CHANGES = "has another ETag from the second request on"
    PRECONDITION = "412 from the second request on"
    GROWS = "another size from the second request on"
    NO_ETAG = "no ETag"
    WEAK_ETAG = "a weak ETag"
    LOOP = "redirects to itself"
    TO_FILE = "redirects to a file: URL"
    NOWHERE = "redirects without saying where to"
    HTML = "200 with a page in HTML"
    HUGE_HEADERS = "a header line of 10 MB"


@dataclass
class Request:
    """What was asked."""

    path: str
    headers: dict[str, str]


@dataclass
class HttpServer:
    """The server; `redirect` maps a path (without query) to where it leads."""

    folder: Path
    fault: Fault = Fault.NONE
    times: int = 1 << 30
    redirect: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before each answer, as a network would take."""
    token: str = ""
    """An Authorization header without which the answer is 401."""
    requests: list[Request] = field(default_factory=list)
    sent: int = 0
    waiting: int = 0
    """Requests that wait out their delay now, and the most that did so at once."""
    most_waiting: int = 0
    routes: Callable[[Any, str], bool] | None = None
    """Answers a request itself, given the handler and the path."""

    def __enter__(self) -> HttpServer:
        outer = self

        class Handler(_Handler):
            owner = outer

        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def ranges(self, path: str) -> list[tuple[int, int]]:
        """First and last byte of each request for `path`."""
        asked = [r.headers.get("range", "") for r in self.requests if unquote(urlsplit(r.path).path) == path]
        return [(int(a), int(b)) for a, b in (value.removeprefix("bytes=").split("-") for value in asked)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: HttpServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        owner = self.owner
        with owner.lock:
            owner.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}))
            number = len(owner.requests)
            fault = owner.fault if number <= owner.times else Fault.NONE
            owner.waiting += 1
            owner.most_waiting = max(owner.most_waiting, owner.waiting)
        path = unquote(urlsplit(self.path).path)
        time.sleep(owner.delay)
        with owner.lock:
            owner.waiting -= 1
        with contextlib.suppress(OSError):
            if owner.routes is not None and owner.routes(self, path):
                return
            if owner.token and self.headers.get("Authorization") != owner.token:
                self.plain(401)
            elif path in owner.redirect:
                self.plain(302, {"Location": owner.redirect[path]})
            elif not (owner.folder / path.lstrip("/")).is_file():
                self.plain(404)
            else:
                self.file(owner.folder / path.lstrip("/"), fault, number)

    def plain(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def file(
        self, path: Path, fault: Fault = Fault.NONE, number: int = 1, headers: dict[str, str] | None = None
    ) -> None:
        later = number > 1
        early = {
            Fault.DROPS: lambda: self.hang_up(),
            Fault.BUSY: lambda: self.plain(503, {"Retry-After": "0"}),
            Fault.TOO_MANY: lambda: self.plain(429),
            Fault.NEVER_NOW: lambda: self.plain(429, {"Retry-After": "3600"}),
            Fault.LOOP: lambda: self.plain(302, {"Location": self.path}),
            Fault.TO_FILE: lambda: self.plain(302, {"Location": "file:///etc/passwd"}),
            Fault.NOWHERE: lambda: self.plain(302),
            Fault.HTML: lambda: self.plain(200, {"ETag": '"h"'}, b"<!DOCTYPE html><title>Sign in</title>" + b" " * 99),
            Fault.HUGE_HEADERS: lambda: self.plain(200, {"X-Much": "x" * (10 << 20)}),
        }
        if fault in early:
            return early[fault]()
        if fault is Fault.PRECONDITION and later:
            return self.plain(412)
        size = path.stat().st_size + (32 if fault is Fault.GROWS and later else 0)
        etag = f'"{hashlib.sha256(f"{path.stat().st_mtime_ns} {size}".encode()).hexdigest()[:16]}"'
        etag = {Fault.WEAK_ETAG: f"W/{etag}", Fault.NO_ETAG: ""}.get(fault, etag)
        if fault is Fault.CHANGES and later:
            etag = '"another"'
        sent = dict(headers or {})
        if etag and "ETag" not in sent:
            sent["ETag"] = etag
        wanted = self.headers.get("If-Match")
        if wanted is not None and fault is not Fault.CHANGES and wanted != sent.get("ETag"):
            return self.plain(412)
        start, stop, status = 0, size, 200
        asked = self.headers.get("Range")
        whole = fault in (Fault.IGNORES_RANGES, Fault.IGNORES_RANGES_NO_LENGTH, Fault.ENDLESS_WHOLE)
        if asked is not None and not whole:
            first, last = asked.removeprefix("bytes=").split("-")
            start, stop, status = int(first), min(int(last or size) + 1, size), 206
            if start >= size:
                return self.plain(416, {"Content-Range": f"bytes */{size}"})
            shown = (start + 1, stop) if fault is Fault.OTHER_RANGE else (start, stop - 1)
            sent["Content-Range"] = f"bytes {shown[0]}-{shown[1]}/{size}"
        if fault is Fault.NO_CONTENT_RANGE:
            del sent["Content-Range"]
        if fault is Fault.GZIP:
            sent["Content-Encoding"] = "gzip"
        self.send_response(status)
        if fault is Fault.SLOW_HEADERS:
            self.flush_headers()
            for _ in range(1000):
                self.wfile.write(b"X-Wait: 1\r\n")
                if self.owner.stop.wait(0.05):
                    return None
        endless = fault in (Fault.ENDLESS, Fault.ENDLESS_WHOLE, Fault.IGNORES_RANGES_NO_LENGTH)
        if endless or fault is Fault.TOO_LONG:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            sent["Content-Length"] = str(stop - start)
        for key, value in sent.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return None
        if endless:
            return self.chunks(iter(lambda: bytes(_CHUNK), b"never"))
        with path.open("rb") as file:
            file.seek(start)
            if fault is Fault.TOO_LONG:
                return self.chunks(iter([file.read(stop - start), b"x" * 100, b""]))
            self.body(file, stop - start, fault)
        return None

    def body(self, file: Any, left: int, fault: Fault) -> None:
        if fault is Fault.SHORT:
            left //= 2
        while left:
            piece = file.read(min(left, 1 if fault is Fault.SLOW else _CHUNK))
            left -= len(piece)
            self.write(piece)
            if fault is Fault.SLOW and self.owner.stop.wait(0.05):
                return
        if fault is Fault.SHORT:
            self.hang_up()

    def chunks(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            self.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            if self.owner.stop.is_set():
                return

    def write(self, data: bytes) -> None:
        self.wfile.write(data)
        with self.owner.lock:
            self.owner.sent += len(data)

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
