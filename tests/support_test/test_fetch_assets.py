"""Unpacking is careful about what archives hold, and the fetched files are what they should be."""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest
from support import assets

fetch = assets._fetcher()
PREFIX = "llama_cpp_python-0/vendor/llama.cpp/"


def archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for member, data in members:
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return path


def test_only_wanted_regular_files_are_unpacked(tmp_path: Path) -> None:
    link = tarfile.TarInfo(PREFIX + "conversion/evil.py")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    names = ["convert_hf_to_gguf.py", "conversion/a.py", "models/x.gguf.inp", "models/templates/t.jinja"]
    names += ["models/templates/t.gguf", "src/b.cpp", "models/other/t.jinja"]
    members = [(tarfile.TarInfo(PREFIX + name), b"x") for name in names]
    path = archive(tmp_path / "s.tar.gz", [*members, (link, b""), (tarfile.TarInfo("other/vendor/y"), b"")])
    fetch._unpack_llama_cpp(path, tmp_path / "out")
    found = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert found == [
        "conversion/a.py",
        "convert_hf_to_gguf.py",
        "models/templates/t.jinja",
        "models/x.gguf.inp",
    ]


def test_a_path_that_climbs_out_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "s.tar.gz", [(tarfile.TarInfo(PREFIX + "conversion/../../../x.py"), b"x")])
    with pytest.raises(fetch.FetchError, match="refuses"):
        fetch._unpack_llama_cpp(path, tmp_path / "out")
    assert not (tmp_path / "x.py").exists()


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"other")
    with pytest.raises(fetch.FetchError, match="sha256"):
        fetch._verify(path, "0" * 64)


def test_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: object) -> None:
    monkeypatch.setenv("GGUFMAP_ASSETS", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert fetch.main(["gemma"]) == 1
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".lock"]


def test_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(SystemExit, match="2"):
        fetch.main(["nonsense"])


def test_assets_are_there(gemma: Path, qwen_header: Path, llama_cpp: Path) -> None:
    assert gemma.stat().st_size == 253_113_024
    assert qwen_header.read_bytes()[:4] == b"GGUF"
    assert (llama_cpp / "gguf-py" / "gguf" / "constants.py").exists()
    assert len(list((llama_cpp / "models").glob("*.gguf"))) == 19
