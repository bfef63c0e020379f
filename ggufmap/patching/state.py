"""How a patch and an environment stand to each other, from the SHA-256 of the installed files alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ggufmap.errors import PatchError
from ggufmap.patching.environment import Installed, find_installed, locate
from ggufmap.patching.patchfile import FileDiff, Patch, sha256


class State(StrEnum):
    """What `ggufmap patch list` says."""

    NOT_INSTALLED = "not installed"
    NOT_NEEDED = "not needed"
    NOT_COVERED = "version not covered"
    REFUSED = "cannot be patched"
    APPLIES = "applies"
    APPLIED = "applied"
    HALF_APPLIED = "half applied"
    MODIFIED = "modified by others"


@dataclass(frozen=True, slots=True)
class FileState:
    """A file of a patch as it is: its bytes, and whether they are those before, after, or neither."""

    diff: FileDiff
    path: Path
    content: bytes
    state: State

    def expected(self, version: str) -> str:
        """What was found and what was expected, for a person."""
        before, after = self.diff.digests[version]
        return f"{self.path}: SHA-256 is {sha256(self.content)}, expected {before} (or {after}, patched)"


@dataclass(frozen=True, slots=True)
class Finding:
    """A patch in an environment. `files` only where the state follows from them; `reason` says why it is refused."""

    patch: Patch
    installed: Installed | None
    state: State
    files: tuple[FileState, ...] = ()
    reason: str = ""


def inspect(patch: Patch, path: Sequence[Path]) -> Finding:
    """Look at `patch` in the folders of `path`. Nothing is written or imported."""
    installed = find_installed(patch.packages, path)
    if installed is None:
        return Finding(patch, None, State.NOT_INSTALLED)
    if installed.version not in patch.versions:
        newer = patch.not_needed_from is not None and _order(installed.version) >= _order(patch.not_needed_from)
        return Finding(patch, installed, State.NOT_NEEDED if newer else State.NOT_COVERED)
    if installed.editable:
        return Finding(patch, installed, State.REFUSED, reason="an editable install: change its checkout")
    try:
        files = tuple(_file_state(diff, installed) for diff in patch.files)
    except PatchError as e:
        return Finding(patch, installed, State.REFUSED, reason=e.message)
    states = {file.state for file in files}
    mixed = State.MODIFIED if State.MODIFIED in states else State.HALF_APPLIED
    return Finding(patch, installed, mixed if len(states) > 1 else states.pop(), files)


def _file_state(diff: FileDiff, installed: Installed) -> FileState:
    path = locate(installed.folder, diff.path)
    content = path.read_bytes()
    states = dict(zip(diff.digests[installed.version], (State.APPLIES, State.APPLIED), strict=True))
    return FileState(diff, path, content, states.get(sha256(content), State.MODIFIED))


def _order(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, comparable."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
