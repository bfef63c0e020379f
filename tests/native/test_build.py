"""The library is built once, by whatever compiler there is, and nothing depends on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ggufmap.native import build, native

REAL = build._compiler()
needs_compiler = pytest.mark.skipif(not REAL, reason="there is no C compiler here")
Compiler = Callable[[str], Path]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, and nothing that this process has built before."""
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(build.SWITCH, raising=False)
    build._native.cache_clear()
    yield
    build._native.cache_clear()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    """Makes a compiler out of a shell script, in which $REAL is the real one; every call is a line of `calls`."""

    def make(script: str) -> Path:
        path, calls = tmp_path / "my-cc", tmp_path / "calls"
        path.write_text(f'#!/bin/sh\nREAL="{" ".join(REAL)}"\necho "$@" >> "{calls}"\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        return calls

    return make


def libraries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "native").glob("*/decode.so"))


@needs_compiler
def test_it_is_built_once_for_all_threads_and_processes(compiler: Compiler, tmp_path: Path) -> None:
    calls = compiler('exec $REAL "$@"')
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: native(), range(8)))
    assert len(set(map(id, found))) == 1
    assert found[0].library is not None and found[0].library.q4_0_f32
    assert found[0].compiler == str(tmp_path / "my-cc") and found[0].why == ""
    again = "from ggufmap.native import native; assert native().library.q6_k_bf16, native().why"
    subprocess.run([sys.executable, "-c", again], check=True)
    assert len(calls.read_text().splitlines()) == 1
    assert len(libraries(tmp_path)) == 1


@needs_compiler
def test_processes_that_build_at_the_same_time(tmp_path: Path) -> None:
    code = "from ggufmap.native import native; assert native().library.q6_k_bf16, native().why"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait(timeout=120) for process in started] == [0] * 4
    assert len(libraries(tmp_path)) == 1
    assert [path.name for path in libraries(tmp_path)[0].parent.parent.iterdir() if path.name.startswith(".")] == []


@needs_compiler
def test_a_compiler_that_does_not_know_this_cpu(compiler: Compiler) -> None:
    calls = compiler('case "$*" in *-march=native*) exit 1;; esac\nexec $REAL "$@"')
    assert native().library is not None
    assert len(calls.read_text().splitlines()) == 2


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native().library is None and "no C compiler" in native().why


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
    calls = compiler("exit 1")
    monkeypatch.setenv(build.SWITCH, "off")
    assert native().library is None and native().why == "GGUFMAP_NATIVE=off"
    assert not calls.exists()


def test_what_the_compiler_says_is_told(compiler: Compiler, tmp_path: Path) -> None:
    compiler("echo a note >&2; echo 'decode.c:1: fatal: no stdint.h' >&2; exit 1")
    found = native()
    assert found.library is None
    assert "decode.c:1: fatal: no stdint.h" in found.why
    assert libraries(tmp_path) == []


def test_a_compiler_that_makes_no_library(compiler: Compiler) -> None:
    compiler('while [ "$1" != -o ]; do shift; done\necho junk > "$2"')
    assert native().library is None
    assert "decode.so" in native().why


def test_a_compiler_that_makes_nothing(compiler: Compiler) -> None:
    compiler("exit 0")
    assert native().library is None
    assert "decode.so" in native().why


def test_a_compiler_that_never_ends(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler("exec sleep 60")
    monkeypatch.setattr(build, "_TIMEOUT_S", 0.2)
    assert native().library is None
    assert "not built within 0.2 s" in native().why


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("CC", sys.executable)  # never called
    assert native().library is None
    assert str(tmp_path / "file") in native().why


@needs_compiler
@pytest.mark.parametrize("place", ["decode.so", "."])
def test_a_library_that_others_may_write_is_built_again(compiler: Compiler, tmp_path: Path, place: str) -> None:
    calls = compiler('exec $REAL "$@"')
    assert native().library is not None
    (path,) = libraries(tmp_path)
    (path.parent / place).chmod(0o777)
    build._native.cache_clear()
    assert native().library is not None
    assert len(calls.read_text().splitlines()) == 2
    (path,) = libraries(tmp_path)
    assert path.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777 == 0o755


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_library_of_somebody_else_is_built_again(compiler: Compiler, tmp_path: Path) -> None:
    calls = compiler('exec $REAL "$@"')
    assert native().library is not None
    os.chown(libraries(tmp_path)[0], 1000, 1000)
    build._native.cache_clear()
    assert native().library is not None
    assert len(calls.read_text().splitlines()) == 2


def test_another_cpu_compiler_or_user_gets_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [build._key(["cc"]), build._key(["gcc"]), build._key(["gcc", "-m32"])]
    monkeypatch.setattr(build, "_cpu", lambda: "flags: fpu")
    keys.append(build._key(["cc"]))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    keys.append(build._key(["cc"]))
    assert len(set(keys)) == 5


def test_the_cpu_is_one_cpu() -> None:
    lines = build._cpu().splitlines()
    assert 0 < len(lines) <= 5
    assert len({line.split(":")[0] for line in lines}) == len(lines)


def test_building_needs_neither_numpy_nor_torch() -> None:
    code = "import json, sys, ggufmap.native as n; n.native(); print(json.dumps([m for m in ('numpy', 'torch') if m in sys.modules]))"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
