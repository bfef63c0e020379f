"""Where packages are installed: their versions, folders and files, without importing any of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from ggufmap.errors import MissingDependencyError, PatchError, UsageError

_PATH_OF = "import json, sys; print(json.dumps(sys.path[1:]))"  # the first is the folder that Python is started in
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution; `folder` is the site-packages that holds it."""

    package: str
    version: str
    folder: Path
    editable: bool


def search_path(python: Path | None = None, site_packages: Path | None = None) -> tuple[Path, ...]:
    """The folders where packages are looked for: those of `python`, one folder, or those of this process.

    Raises UsageError for both or a folder that is none, MissingDependencyError when `python` does not run.
    """
    if python is not None and site_packages is not None:
        raise UsageError("--python and --site-packages name two environments", hint="Give one of them.")
    if site_packages is not None:
        if not site_packages.is_dir():
            raise UsageError(
                f"{site_packages}: no such folder", hint="--site-packages takes the folder that the packages are in."
            )
        return (site_packages.resolve(),)
    entries = sys.path if python is None else _ask(python)
    return tuple(dict.fromkeys(Path(entry).resolve() for entry in entries if entry and Path(entry).is_dir()))


def _ask(python: Path) -> list[str]:
    try:
        done = subprocess.run([str(python), "-c", _PATH_OF], capture_output=True, text=True, timeout=_TIMEOUT_S)
        entries: list[str] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as e:
        raise MissingDependencyError(
            f"{python} does not run as a Python: {e}", hint="--python takes an interpreter, such as .venv/bin/python."
        ) from e
    return entries


def find_installed(packages: Sequence[str], path: Sequence[Path]) -> Installed | None:
    """The first of `packages` that is installed, in the order of the folders; `version` is without a `+local` part."""
    folders = [str(folder) for folder in path]
    found = [d for name in packages for d in Distribution.discover(name=name, path=folders)]
    if not found:
        return None
    first = min(found, key=lambda d: folders.index(str(_folder(d))))
    origin = json.loads(first.read_text("direct_url.json") or "{}")
    return Installed(
        package=first.metadata["Name"],
        version=first.version.partition("+")[0],
        folder=_folder(first),
        editable=bool(origin.get("dir_info", {}).get("editable")),
    )


def _folder(distribution: Distribution) -> Path:
    return Path(str(distribution.locate_file("")))


def locate(folder: Path, relative: str) -> Path:
    """A file below `folder`, reached without any link. Raises PatchError where it is not a plain file."""
    path = folder
    for part in relative.split("/"):
        path /= part
        if path.is_symlink():
            raise PatchError(f"{path} is a symbolic link: what it points to may belong to others")
    if not path.is_file():
        raise PatchError(f"{path} is not there")
    return path
