"""Ranges of bytes over HTTP, from servers that may be wrong or hostile.

Redirects are followed here and not by the library: credentials stay with the server that they are for, https never
becomes http, and a public server never leads to an address of this machine or its network.
"""

from __future__ import annotations

import ipaddress
import logging
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from ggufmap import __version__
from ggufmap.errors import FileError, MissingDependencyError
from ggufmap.remote.limits import Meter, RemoteLimits
from ggufmap.remote.reader import (
    Part,
    RetryError,
    Version,
    check_range,
    check_version,
    persistent,
    reason,
    refuse,
    shown,
)
from ggufmap.remote.reference import redacted

_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_DISCARD = 1 << 20
_LINKED = "X-Linked-ETag"
"""What the hub calls the ETag of a large file, before it redirects to where that lies."""


class HttpClient:
    """A pool of connections, shared by the files of a command and by threads."""

    def __init__(self, limits: RemoteLimits, meter: Meter) -> None:
        """Raises MissingDependencyError without `requests`."""
        try:
            import requests
        except ImportError as e:
            raise missing("requests") from e
        logging.getLogger("urllib3").setLevel(logging.WARNING)  # it logs whole URLs
        self.limits = limits
        self.meter = meter
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": f"ggufmap/{__version__}", "Accept-Encoding": "identity"})
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=16, max_retries=0))

    def open(self, url: str, headers: Mapping[str, str], name: str) -> Any:
        """The answer to a GET, its body not yet read. Raises RetryError, or FileError, when there is none."""
        import requests

        wait = (self.limits.connect_s, self.limits.silence_s)
        try:
            return self._session.get(
                url, headers=dict(headers), stream=True, allow_redirects=False, timeout=wait, auth=_no_more_headers
            )
        except requests.exceptions.SSLError:
            raise FileError(f"{name}: the server's certificate is not trusted") from None
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as e:
            raise RetryError(reason(e)) from None
        except (requests.exceptions.RequestException, ValueError) as e:
            raise FileError(f"{name}: cannot be asked for ({type(e).__name__})") from None


@dataclass(slots=True)
class HttpReader:
    """One file at `url`. `credentials` are headers for the server of `url` alone; `hint` helps whom it turns away."""

    client: HttpClient
    url: str
    credentials: Mapping[str, str]
    name: str
    cache_key: str | None
    hint: str
    _tag: tuple[tuple[str, str, int], str] | None = None
    """The server that gave the bytes, and its own ETag."""
    _whole: bool = False
    """The server ignores ranges."""

    def fetch(self, start: int, stop: int, known: Version | None) -> Part:
        """See Reader.fetch."""
        if self._whole and start > self.client.limits.header_bytes:
            raise FileError(
                f"{self.name}: the server ignores ranges: {stop - start} bytes at offset {start} cannot be read",
                hint="Download the file, then name it.",
            )
        part = persistent(lambda: self._once(start, stop, known), self.name, self.client.limits)
        check_version(part.version, known, self.name)
        return part

    def _once(self, start: int, stop: int, known: Version | None) -> Part:
        url, linked = self.url, ""
        for _ in range(self.client.limits.redirects + 1):
            answer = self.client.open(url, self._headers(url, start, stop), self.name)
            try:
                if answer.status_code not in _REDIRECTS:
                    return self._part(answer, url, linked, start, stop)
                linked = answer.headers.get(_LINKED, linked)
                url = next_url(url, answer.headers.get("Location", ""), self.name)
            finally:
                answer.close()
        raise FileError(f"{self.name}: more than {self.client.limits.redirects} redirects")

    def _headers(self, url: str, start: int, stop: int) -> dict[str, str]:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if origin(url) == origin(self.url):
            headers |= self.credentials
        if self._tag is not None and self._tag[0] == origin(url):
            headers["If-Match"] = self._tag[1]
        return headers

    def _part(self, answer: Any, url: str, linked: str, start: int, stop: int) -> Part:
        headers, status = answer.headers, answer.status_code
        etag = headers.get("ETag", "")
        if headers.get("Content-Encoding", "identity") != "identity":
            raise FileError(f"{self.name}: the server sends it encoded ({shown(headers['Content-Encoding'])})")
        if status == 416 and headers.get("Content-Range", "").replace(" ", "") == "bytes*/0":
            return Part(b"", Version(0, linked or etag))
        if status == 206:
            count, size = check_range(headers.get("Content-Range", ""), start, stop, self.name)
            skip = 0
        elif status == 200:
            self._whole = True
            length = headers.get("Content-Length", "")
            if not length.isdecimal():
                raise FileError(f"{self.name}: the server ignores ranges and does not say how long the file is")
            size = int(length)
            skip, count = start, max(min(stop, size) - start, 0)
        else:
            refuse(status, self.name, self.hint, headers.get("Retry-After", ""))
        identity = linked or etag
        version = Version(size, identity, "" if identity else headers.get("Last-Modified", ""))
        data = self._body(answer, skip, count, whole=status == 200)
        if etag and not etag.startswith("W/"):
            self._tag = origin(url), etag
        return Part(data, version)

    def _body(self, answer: Any, skip: int, count: int, *, whole: bool) -> bytes:
        """`count` bytes behind the first `skip`; more than that only from a server that ignores ranges."""
        from urllib3.exceptions import HTTPError

        left = skip
        try:
            while left:
                passed = len(answer.raw.read(min(left, _DISCARD)))
                if not passed:
                    raise RetryError(f"the answer ends {left} bytes before offset {skip}")
                self.client.meter.add(passed, self.name)
                left -= passed
            # One more than there should be: it finds a server that sends too much, and sees the end of the answer.
            data: bytes = answer.raw.read(count if whole else count + 1)
        except (HTTPError, OSError) as e:
            raise RetryError(f"the answer broke off: {reason(e)}") from None
        self.client.meter.add(len(data), self.name)
        if len(data) < count:
            raise RetryError(f"the answer ends after {len(data)} of {count} bytes")
        if len(data) > count:
            raise FileError(f"{self.name}: the server sends more than the {count} bytes that it announced")
        return data


def missing(package: str) -> MissingDependencyError:
    """What to say when a package of the `remote` extra is not there."""
    return MissingDependencyError(
        f"remote files need the package {package}, which is not installed", hint="pip install 'ggufmap[remote]'"
    )


def next_url(url: str, location: str, name: str) -> str:
    """Where a redirect of `url` leads. Raises FileError where it must not be followed."""
    try:
        found = urljoin(url, location)
        parts = urlsplit(found)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not location or not host or parts.scheme not in _PORTS:
        raise FileError(f"{name}: the server redirects to no web address")
    if parts.scheme == "http" and urlsplit(url).scheme == "https":
        raise FileError(f"{name}: the server redirects from https to http ({redacted(found)})")
    if _private(host) and not _private(urlsplit(url).hostname or ""):
        raise FileError(
            f"{name}: the server redirects to an address of this machine or its network ({redacted(found)})"
        )
    return without_user(found)


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of `url`: credentials are for all three."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def without_user(url: str) -> str:
    """`url` without user and password."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def basic(url: str) -> dict[str, str]:
    """The header for the user and password in `url`."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _private(host: str) -> bool:
    """Whether `host` is written as an address that is not of the public internet. Names are not looked up."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return not ipaddress.ip_address(host.partition("%")[0]).is_global
    except ValueError:
        return False


def _no_more_headers(request: Any) -> Any:
    """An `auth` that adds nothing: without one, requests takes credentials from ~/.netrc in place of ours."""
    return request
