"""What a MODEL argument means: a local path, or a reference to a file elsewhere. Pure functions, no network."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from ggufmap.errors import UsageError

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_HUB = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^:/@]+))?(?::(?P<tag>[^:/]+)|/(?P<path>.+))?",
    re.ASCII,
)
_LOOKS_LIKE_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(?:@[^:/]+)?(?::[^:/]+)?", re.ASCII)
_KNOWN = "known are hf, https, http and s3"
_HUB_FORMS = "Write hf://ORG/REPO:TAG (for example :Q4_K_M) or hf://ORG/REPO/FILE.gguf; @REVISION may follow REPO."


@dataclass(frozen=True, slots=True)
class HubReference:
    """`hf://repo[@revision][:tag]` or `hf://repo[@revision]/path`; `repo` is `org/name`."""

    repo: str
    revision: str | None = None
    tag: str | None = None
    path: str | None = None

    @property
    def root(self) -> str:
        """The reference of the whole repository."""
        return f"hf://{self.repo}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class UrlReference:
    """An http or https URL, credentials and query included: never shown."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class S3Reference:
    """`s3://bucket/key`."""

    bucket: str
    key: str


Reference: TypeAlias = HubReference | UrlReference | S3Reference


def parse(text: str) -> Path | Reference:
    """What `text` refers to. Raises UsageError for a scheme that is not supported and a malformed reference."""
    match = _SCHEME.match(text)
    if match is None:
        return _local(text)
    scheme, rest = match["scheme"].lower(), text[match.end() :]
    if scheme == "hf":
        return _hub(rest)
    if scheme == "s3":
        bucket, _, key = rest.partition("/")
        if not bucket or not key or key.endswith("/"):
            raise UsageError(f"{text}: a bucket and a key are expected", hint="Write s3://BUCKET/PATH/FILE.gguf.")
        return S3Reference(bucket, key)
    if scheme not in ("http", "https"):
        raise UsageError(f"{scheme}:// is not supported ({_KNOWN})", hint="Name a local file without a scheme.")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as e:
        raise UsageError(f"not a URL: {e}", hint="For example https://host/folder/model.gguf") from None
    if not host or not parts.path.strip("/") or parts.path.endswith("/"):
        raise UsageError(
            f"{redacted(text)}: the URL of a .gguf file is expected", hint="Name the file, not its folder."
        )
    return UrlReference(text)


def redacted(url: str) -> str:
    """`url` without what may be secret: user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def shown(text: str | None) -> str | None:
    """A MODEL argument, or another one like it, as it may be printed."""
    return text if text is None or "://" not in text else redacted(text)


def safe(path: str) -> bool:
    """Whether a file name from a listing stays in its folder."""
    return not re.search(r"[\\\0]", path) and not {"", ".", ".."}.intersection(path.split("/"))


def _local(text: str) -> Path:
    if not os.path.lexists(text) and not text.lower().endswith(".gguf") and _LOOKS_LIKE_HUB.fullmatch(text):
        raise UsageError(f"{text}: no such file or folder", hint=f"If it is a model of the hub, write hf://{text}.")
    return Path(text)


def _hub(rest: str) -> HubReference:
    match = _HUB.fullmatch(rest)
    if match is None:
        raise UsageError(f"hf://{rest}: not a reference to a model of the hub", hint=_HUB_FORMS)
    path = match["path"]
    if path is not None and not (path.lower().endswith(".gguf") and safe(path)):
        raise UsageError(f"hf://{rest}: {path} is not the path of a .gguf file", hint=_HUB_FORMS)
    revision = match["revision"]
    return HubReference(match["repo"], None if revision is None else unquote(revision), match["tag"], path)
