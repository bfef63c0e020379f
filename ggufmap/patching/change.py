"""Applies and reverts a patch: all is verified before the first byte is written, a crash leaves a known state."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ggufmap.errors import MissingDependencyError, PatchError
from ggufmap.patching.environment import Installed
from ggufmap.patching.patchfile import Patch, sha256
from ggufmap.patching.state import FileState, Finding, State
from ggufmap.whole import replace_file

BACKUPS = ".ggufmap-orig"
"""The folder in site-packages with one folder per applied patch: the files as they were, and manifest.json."""
_MANIFEST = "manifest.json"
_PRIVATE = 0o600


def apply(finding: Finding, *, dry_run: bool = False) -> list[Path]:
    """Write the patched files, and return them; [] when the patch is applied already.

    A half-applied patch is completed. Raises PatchError where the bytes are not those that the patch was made for, and
    MissingDependencyError where the package is absent or its folder cannot be written to.
    """
    installed = _installed(finding)
    todo = [file for file in finding.files if file.state is State.APPLIES]
    new = [_verified(file, file.diff.patched(file.content), installed.version, after=True) for file in todo]
    if todo:
        _check_writable(todo, installed)
    if todo and not dry_run:
        try:
            _back_up(finding.patch, installed, todo)
            for file, content in zip(todo, new, strict=True):
                _replace(file.path, content)
        except OSError as e:
            raise _cannot_write(e) from e
    return [file.path for file in todo]


def revert(finding: Finding, *, dry_run: bool = False) -> list[Path]:
    """Put the original files back, and return them; [] when the patch is not applied. Raises as `apply`.

    The original comes from the backup if that is intact, else from the diff taken backwards; either is verified.
    """
    installed = _installed(finding)
    todo = [file for file in finding.files if file.state is State.APPLIED]
    old = [_original(finding.patch, installed, file) for file in todo]
    if todo:
        _check_writable(todo, installed)
    if not dry_run:
        try:
            for file, content in zip(todo, old, strict=True):
                _replace(file.path, content)
            _forget(finding.patch, installed)
        except OSError as e:
            raise _cannot_write(e) from e
    return [file.path for file in todo]


def _installed(finding: Finding) -> Installed:
    """The package that the patch can change. Raises where there is none."""
    patch, installed, state = finding.patch, finding.installed, finding.state
    if installed is None:
        raise MissingDependencyError(
            f"{patch.name}: {' or '.join(patch.packages)} is not installed",
            hint="--python NAME chooses the environment that has it.",
        )
    what = f"{patch.name}: {installed.package} {installed.version} in {installed.folder}"
    if state is State.MODIFIED:
        wrong = [file.expected(installed.version) for file in finding.files if file.state is State.MODIFIED]
        raise PatchError(
            "\n".join([f"{what} has been modified by others", *wrong]),
            hint=f"Nothing was written. pip install --force-reinstall --no-deps {installed.package}=="
            f"{installed.version} brings the released files back.",
        )
    if state is State.REFUSED:
        raise PatchError(f"{what}: {finding.reason}")
    if state in (State.NOT_COVERED, State.NOT_NEEDED):
        raise PatchError(f"{what}: {state}", hint=f"The patch is for {' '.join(patch.versions)}.")
    return installed


def _verified(file: FileState, content: bytes, version: str, *, after: bool) -> bytes:
    if sha256(content) != file.diff.digests[version][after]:
        raise PatchError(f"{file.path}: the result is not the expected file; nothing was written")
    return content


def _original(patch: Patch, installed: Installed, file: FileState) -> bytes:
    backup = _backup_folder(patch, installed) / file.diff.path
    if backup.is_file() and sha256(content := backup.read_bytes()) == file.diff.digests[installed.version][0]:
        return content
    return _verified(file, file.diff.unpatched(file.content), installed.version, after=False)


def _backup_folder(patch: Patch, installed: Installed) -> Path:
    root = installed.folder / BACKUPS
    if root.is_symlink() or (root / patch.name).is_symlink():
        raise PatchError(f"{root} is a symbolic link: backups are not written through it")
    return root / patch.name


def _back_up(patch: Patch, installed: Installed, files: Sequence[FileState]) -> None:
    folder = _backup_folder(patch, installed)
    for file in files:
        target = folder / file.diff.path
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, file.content, _PRIVATE)
    entries = [
        {"path": diff.path, "before": diff.digests[installed.version][0], "after": diff.digests[installed.version][1]}
        for diff in patch.files
    ]
    manifest = {"patch": patch.name, "package": installed.package, "version": installed.version, "files": entries}
    replace_file(folder / _MANIFEST, json.dumps(manifest, indent=1).encode(), _PRIVATE)


def _forget(patch: Patch, installed: Installed) -> None:
    folder = _backup_folder(patch, installed)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def _check_writable(files: Sequence[FileState], installed: Installed) -> None:
    for path in (installed.folder, *(p for file in files for p in (file.path, file.path.parent))):
        if not os.access(path, os.W_OK, effective_ids=True):
            raise MissingDependencyError(
                f"{path} is read-only: nothing was written",
                hint="Run this as the owner of the environment, or patch a copy of it (--site-packages).",
            )


def _cannot_write(error: OSError) -> MissingDependencyError:
    return MissingDependencyError(
        f"cannot write: {error}", hint="`ggufmap patch list` says how far it came; apply or revert goes on from there."
    )


def _replace(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path` at once, with its mode. Compiled copies go: some check no time."""
    replace_file(path, content, path.stat().st_mode & 0o7777)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
