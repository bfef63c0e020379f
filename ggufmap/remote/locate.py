"""From a MODEL argument to an open checkpoint, or to local files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.checkpoint.source import Place
from ggufmap.errors import UsageError
from ggufmap.remote.limits import Meter, RemoteLimits
from ggufmap.remote.reference import S3Reference, UrlReference, parse

if TYPE_CHECKING:
    from ggufmap.remote.folder import FileAt

Given = str | Path | Place
"""A MODEL argument, or what `locate` made of one."""


def locate(given: Given, limits: RemoteLimits | None = None) -> Place:
    """The file that `given` means: a local path, or a file that is read over the network.

    Raises UsageError for a reference that means no file or several, FileError when the hub cannot be asked,
    MissingDependencyError without the packages of the `remote` extra.
    """
    if not isinstance(given, str):
        return given
    reference = parse(given)
    if isinstance(reference, Path):
        return reference
    limits = limits or RemoteLimits()
    meter = Meter(limits.total_bytes)
    if isinstance(reference, S3Reference):
        from ggufmap.remote.folder import FileAt, S3Folder
        from ggufmap.remote.s3 import S3Client

        return FileAt(S3Folder(S3Client(limits, meter), reference.bucket), reference.key)
    from ggufmap.remote import hub
    from ggufmap.remote.folder import of_url
    from ggufmap.remote.http import HttpClient

    if isinstance(reference, UrlReference):
        return of_url(HttpClient(limits, meter), reference)
    if hub.offline():
        return hub.cached(reference)
    return hub.find(HttpClient(limits, meter), reference)


def open_model(
    model: Given,
    *,
    check: bool = True,
    draft: Given | None = None,
    mmproj: Given | None = None,
    look_beside: bool = False,
) -> Checkpoint:
    """`open_checkpoint` for MODEL arguments: each may be a reference. Raises what it and `locate` raise."""
    return open_checkpoint(
        locate(model),
        check=check,
        draft=None if draft is None else locate(draft),
        mmproj=None if mmproj is None else locate(mmproj),
        look_beside=look_beside,
    )


@dataclass(frozen=True, slots=True)
class Files:
    """A model as local files."""

    model: Path
    draft: Path | None
    mmproj: Path | None


def fetch(model: Given, draft: Given | None = None, mmproj: Given | None = None) -> Files:
    """The files of a model, all local: what is on the hub is downloaded into the hub's cache.

    A projector that belongs to the model comes with it.
    Raises UsageError for what is neither local nor on the hub, FileError when a download fails.
    """
    file, projector = _fetched(model)
    return Files(
        file,
        None if draft is None else _fetched(draft)[0],
        projector if mmproj is None else _fetched(mmproj)[0],
    )


def to_download(given: Given) -> list[str]:
    """The names of the files that `fetch` would download for `given`: none when it is local, or in the hub's cache."""
    place = locate(given)
    if isinstance(place, Path):
        return []
    from ggufmap.remote import hub

    file = _on_hub(place)
    return [] if hub.download(file, local=True) is not None else hub.wanted(file)[0]


def _fetched(given: Given) -> tuple[Path, Path | None]:
    """A file and the projector that belongs to it."""
    place = locate(given)
    if isinstance(place, Path):
        return place, None
    from ggufmap.remote import hub

    done = hub.download(_on_hub(place))
    assert done is not None  # it says None of the cache alone
    return done.model, done.mmproj


def _on_hub(place: Place) -> FileAt:
    from ggufmap.remote.folder import FileAt, HubFolder

    if isinstance(place, FileAt) and isinstance(place.folder, HubFolder):
        return place
    raise UsageError(
        f"{place}: the weights are needed, and only headers are read from there",
        hint="Download the file, all splits of it, then name it.",
    )
