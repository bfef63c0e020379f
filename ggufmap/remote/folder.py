"""Remote files and the folders that they are in: what a Path is for a local file (`checkpoint.source.Remote`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import quote, urlsplit, urlunsplit

from ggufmap.checkpoint.source import Remote, RemoteSource
from ggufmap.remote import tags
from ggufmap.remote.file import RemoteFile
from ggufmap.remote.http import HttpClient, HttpReader, basic, without_user
from ggufmap.remote.reader import Reader
from ggufmap.remote.reference import UrlReference, redacted
from ggufmap.remote.s3 import S3Client, S3Reader

_URL_HINT = "For a model of the hub use hf://ORG/REPO, which sends your token; else put USER:PASSWORD@ into the URL."
_HUB_HINT = "The model may be private or gated: accept its terms on its page and log in with `hf auth login`."


class Folder(Protocol):
    """Where a file and its siblings are."""

    @property
    def client(self) -> HttpClient | S3Client:
        """What connects to it."""
        ...

    def shown(self, name: str) -> str:
        """How messages call the file `name`: no credentials."""
        ...

    def reader(self, name: str) -> Reader:
        """Its bytes."""
        ...

    def names(self) -> list[str] | None:
        """The names of all files; None where they cannot be listed."""
        ...


@dataclass(frozen=True, slots=True)
class FileAt:
    """The file `path` of a remote folder. See `checkpoint.source.Remote`."""

    folder: Folder
    path: str

    @property
    def name(self) -> str:
        """See Remote.name."""
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """See Remote.stem."""
        return PurePosixPath(self.path).stem

    @property
    def suffix(self) -> str:
        """See Remote.suffix."""
        return PurePosixPath(self.path).suffix

    @property
    def parent(self) -> str:
        """See Remote.parent."""
        return str(self).rpartition("/")[0]

    def __str__(self) -> str:
        return self.folder.shown(self.path)

    def with_name(self, name: str) -> FileAt:
        """See Remote.with_name."""
        return FileAt(self.folder, str(PurePosixPath(self.path).with_name(name)))

    def is_file(self) -> bool:
        """See Remote.is_file."""
        names = self.folder.names()
        return names is None or self.path in names

    def projectors(self) -> list[Remote]:
        """See Remote.projectors."""
        return [FileAt(self.folder, name) for name in tags.projectors_of(self.path, self.folder.names() or ())]

    def open(self) -> RemoteSource:
        """See Remote.open."""
        return RemoteFile(self.folder.reader(self.path), self.folder.client.limits)


@dataclass(frozen=True, slots=True)
class HttpFolder:
    """The folder of a URL. Names are the last segments of URLs, as they are written there."""

    client: HttpClient
    url: str = field(repr=False)

    def shown(self, name: str) -> str:
        """See Folder.shown."""
        return redacted(self._at(name))

    def reader(self, name: str) -> HttpReader:
        """See Folder.reader. A URL with a user or a query is not cached: it may be for this user alone."""
        url, credentials = self._at(name), basic(self.url)
        secret = bool(credentials or urlsplit(url).query)
        key = None if secret else url
        return HttpReader(self.client, without_user(url), credentials, self.shown(name), key, _URL_HINT)

    def names(self) -> list[str] | None:
        """See Folder.names."""
        return None

    def _at(self, name: str) -> str:
        parts = urlsplit(self.url)
        path = f"{parts.path.rpartition('/')[0]}/{name}"
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


@dataclass(frozen=True, slots=True)
class S3Folder:
    """A bucket. Names are whole keys."""

    client: S3Client
    bucket: str

    def shown(self, name: str) -> str:
        """See Folder.shown."""
        return f"s3://{self.bucket}/{name}"

    def reader(self, name: str) -> S3Reader:
        """See Folder.reader."""
        return S3Reader(self.client, self.bucket, name)

    def names(self) -> list[str] | None:
        """See Folder.names."""
        return None


@dataclass(frozen=True, slots=True)
class HubFolder:
    """A repository of the hub at one commit. Names are paths in it."""

    client: HttpClient
    endpoint: str
    repo: str
    revision: str | None
    commit: str
    root: str
    """The reference of the repository, as the user wrote it."""
    files: tuple[str, ...]
    credentials: Mapping[str, str] = field(repr=False)

    def shown(self, name: str) -> str:
        """See Folder.shown."""
        return f"{self.root}/{name}"

    def reader(self, name: str) -> HttpReader:
        """See Folder.reader."""
        url = f"{self.endpoint}/{self.repo}/resolve/{quote(self.commit, safe='')}/{quote(name)}"
        return HttpReader(self.client, url, self.credentials, self.shown(name), url, _HUB_HINT)

    def names(self) -> list[str] | None:
        """See Folder.names."""
        return list(self.files)


def of_url(client: HttpClient, reference: UrlReference) -> FileAt:
    """The file of a URL."""
    return FileAt(HttpFolder(client, reference.url), urlsplit(reference.url).path.rpartition("/")[2])
