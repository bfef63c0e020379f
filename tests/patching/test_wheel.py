"""The patches, and the decoders' source, are in an installed wheel, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ggufmap.patching.patchfile import FOLDER

ROOT = Path(__file__).resolve().parents[2]


def test_the_folder_at_the_top_is_the_same() -> None:
    assert (ROOT / "patches").resolve() == FOLDER


def test_a_wheel_has_them(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", "77", reason="the build back end is not installed here")
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ggufmap", source / "ggufmap", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "-w", str(tmp_path), str(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from ggufmap import patching as p; "
    code += "print(*[patch.name for patch in p.load_patches()]); print(p.patchfile.FOLDER)"
    said = subprocess.run(
        [sys.executable, "-c", code, str(installed)], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert said[0].split() == sorted(path.stem for path in FOLDER.glob("*.patch"))
    assert said[1] == str(installed / "ggufmap" / "patches")
    source_of = Path("native") / "decode.c"
    assert (installed / "ggufmap" / source_of).read_bytes() == (ROOT / "ggufmap" / source_of).read_bytes()
