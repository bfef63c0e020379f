"""Folders like site-packages, with a made-up package and a patch for it, or with real packages."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from support import assets

from ggufmap.patching import Finding, Patch, inspect, load_patches
from ggufmap.patching.patchfile import parse

BEFORE = {"demo/a.py": "one\ntwo\nthree\n", "demo/sub/b.py": "x = 1\n\n\ny = 2\n"}
AFTER = {"demo/a.py": "one\n2\nthree\n", "demo/sub/b.py": "x = 1\n\n\ny = 3\nz = 4\n"}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def diff(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    return "\n".join(lines) + "\n"


def patch_text(
    before: Mapping[str, str] = BEFORE, after: Mapping[str, str] = AFTER, versions: str = "1.0 1.1", more: str = ""
) -> str:
    digests = "".join(f"Sha256: {path} {sha(before[path])} {sha(after[path])} {versions}\n" for path in before)
    header = f"Package: demo demo-cpu\nVersions: {versions}\nFixes: that two is\n not 2\nLink: https://example.org/1\n"
    header += f"Remove-when: demo 2.0 is there\nLicense: Apache-2.0\n{more}"
    return header + digests + "\n" + "".join(diff(path, before[path], after[path]) for path in before)


def demo_patch(**changes: object) -> Patch:
    return parse("0001-demo", patch_text(**changes))  # type: ignore[arg-type]


def demo_site(folder: Path, files: Mapping[str, str] = BEFORE, package: str = "demo", version: str = "1.0") -> Path:
    """`folder` with the package in it."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return folder


def contents(site: Path) -> dict[str, str]:
    """The package's files."""
    return {path: (site / path).read_text() for path in BEFORE}


def look(site: Path, patch: Patch | None = None) -> Finding:
    return inspect(patch or demo_patch(), (site,))


def shipped(name: str) -> Patch:
    """A patch of ours by its number."""
    (found,) = [patch for patch in load_patches() if patch.name.startswith(name)]
    return found


def real_site(folder: Path, package: str, version: str) -> Path:
    """A copy of a real package's files."""
    site = folder / f"{package}-{version}"
    shutil.copytree(assets.upstream_dir() / site.name, site)
    return site
