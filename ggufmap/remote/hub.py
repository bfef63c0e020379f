"""Models of the Hugging Face hub: which files a reference means, and their download, through the hub's own library."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggufmap import __version__
from ggufmap.errors import FileError, UsageError
from ggufmap.remote import tags
from ggufmap.remote.folder import FileAt, HubFolder
from ggufmap.remote.http import HttpClient, missing
from ggufmap.remote.reference import HubReference, safe

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_ASK_S = 30
_SHOWN = 40


def find(client: HttpClient, reference: HubReference) -> FileAt:
    """The model that `reference` means, at the commit that its revision has now.

    Raises UsageError, listing the candidates, when there is none or more than one; FileError when the hub cannot be
    asked.
    """
    folder = _folder(client, reference)
    return FileAt(folder, choose(reference, folder.files))


def choose(reference: HubReference, files: tuple[str, ...]) -> str:
    """The file of a repository that `reference` means. Raises UsageError as `find` does."""
    if reference.path is not None:
        if reference.path not in files:
            raise UsageError(f"{reference.root}: has no file {reference.path}", hint=_listed(tags.models(files)))
        return reference.path
    candidates = tags.models(files)
    if not candidates:
        raise UsageError(f"{reference.root}: holds no model in a .gguf file", hint="Look for a GGUF repository of it.")
    found = candidates if reference.tag is None else tags.matching(candidates, reference.tag)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"{reference.root}: no file is {reference.tag}", hint=_listed(candidates))
    what = "holds" if reference.tag is None else f":{reference.tag} means"
    raise UsageError(f"{reference.root}: {what} {len(found)} models", hint=_listed(found))


@dataclass(frozen=True, slots=True)
class Download:
    """The local files of a model."""

    model: Path
    mmproj: Path | None


def download(file: FileAt, *, local: bool = False) -> Download | None:
    """Fetch the model of `file`, all splits, and its projector, if it has exactly one, into the hub's cache.

    With `local`, only what is in the cache counts: None when something is missing there.
    Raises FileError when the download fails.
    """
    from huggingface_hub import snapshot_download

    folder = file.folder
    assert isinstance(folder, HubFolder)
    names, projector = wanted(file)
    try:
        root = snapshot_download(
            folder.repo,
            revision=folder.commit if local else folder.revision,  # by its name, so that the cache knows that, too
            endpoint=folder.endpoint,
            allow_patterns=[glob.escape(name) for name in names],
            local_files_only=local,
            library_name="ggufmap",
            library_version=__version__,
        )
    except Exception as e:  # see _ask
        if local:
            return None
        raise FileError(f"{file}: the download failed ({type(e).__name__})", hint=_again(e)) from None
    if Path(root).name != folder.commit:
        raise FileError(f"{file}: was changed on the hub after it was looked at", hint="Start again.")
    paths = {name: Path(root, name) for name in names}
    absent = [name for name, path in paths.items() if not path.is_file()]
    if absent and local:
        return None
    if absent:
        raise FileError(f"{file}: {', '.join(absent)} is not there after the download", hint="Start again.")
    return Download(paths[file.path], None if projector is None else paths[projector])


def wanted(file: FileAt) -> tuple[list[str], str | None]:
    """The files of the model, and the one of them that is its projector."""
    files = file.folder.names() or []
    names = tags.set_of(file.path, files)
    projectors = tags.projectors_of(file.path, files)
    if len(projectors) != 1 or tags.is_projector(file.path):
        return names, None
    return [*names, projectors[0]], projectors[0]


def cached(reference: HubReference) -> Path:
    """The model that `reference` means among the files of the hub's cache: for work without a network.

    Raises FileError when the repository is not in the cache, UsageError as `find` does.
    """
    from huggingface_hub import snapshot_download

    try:
        # Without a pattern it would want every file of the repository; missing splits are found by their header.
        root = Path(
            snapshot_download(reference.repo, revision=reference.revision, allow_patterns=[], local_files_only=True)
        )
    except Exception as e:
        raise FileError(
            f"{reference.root}: the hub is switched off (HF_HUB_OFFLINE) and its cache has no such model"
        ) from e
    files = tuple(sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()))
    return root / choose(reference, files)


def offline() -> bool:
    """Whether the hub's library is told to stay off the network."""
    try:
        from huggingface_hub import constants
    except ImportError as e:
        raise missing("huggingface_hub") from e
    return bool(constants.HF_HUB_OFFLINE)


def _folder(client: HttpClient, reference: HubReference) -> HubFolder:
    from huggingface_hub import HfApi, get_token

    api = HfApi(library_name="ggufmap", library_version=__version__)
    commit, files = _ask(api, reference)
    token = get_token()
    return HubFolder(
        client,
        api.endpoint,
        reference.repo,
        reference.revision,
        commit,
        reference.root,
        tuple(name for name in files if safe(name)),
        {} if token is None else {"Authorization": f"Bearer {token}"},
    )


def _ask(api: HfApi, reference: HubReference) -> tuple[str, list[str]]:
    """The commit of the revision, and the names of its files."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    root = reference.root
    try:
        info = api.model_info(reference.repo, revision=reference.revision, timeout=_ASK_S)
    except GatedRepoError:
        raise FileError(
            f"{root}: is gated", hint="Accept its terms on its page, then log in with `hf auth login`."
        ) from None
    except RevisionNotFoundError:
        raise FileError(f"{root}: there is no such revision", hint="Name a branch, a tag or a commit.") from None
    except RepositoryNotFoundError:
        hint = "Check the name. If the model is private, log in with `hf auth login` or set HF_TOKEN."
        raise FileError(f"{root}: there is no such model", hint=hint) from None
    except HFValidationError:
        raise UsageError(f"{root}: not the name of a model", hint="Write hf://ORG/REPO:TAG.") from None
    except HfHubHTTPError as e:
        raise FileError(f"{root}: the hub answers {e.response.status_code}", hint="Try again later.") from None
    except Exception as e:  # its transport was requests, httpx and httpx2 within a year; they share no base class
        raise FileError(
            f"{root}: the hub cannot be asked ({type(e).__name__})", hint="Check the connection and HF_ENDPOINT."
        ) from None
    if not info.sha:
        raise FileError(f"{root}: the hub names no commit")
    return info.sha, [file.rfilename for file in info.siblings or ()]


def _again(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return f"{error.strerror}; HF_HOME says where downloads go. Run it again: what is there is kept."
    return "Run it again: what is there is kept."


def _listed(candidates: list[str]) -> str:
    """The candidates with what is asked for to get them, for a hint."""
    lines = [f"  {tags.label(file)}  {file}" if tags.label(file) != file else f"  {file}" for file in candidates]
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join(["Name one of these, by its tag or its path:", *lines[:_SHOWN], *more])
