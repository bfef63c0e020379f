"""Builds `decode.c` with the machine's C compiler, once for each kind of CPU, into the cache folder.

A package cannot bring what is compiled for the CPU it runs on. Nothing depends on it: without a compiler, a cache that
can be written or a folder that code may run from, other decoders do the same, slower.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggufmap.errors import GgufmapError
from ggufmap.modeldir.cache import cache_root, filled_once

SWITCH = "GGUFMAP_NATIVE"
"""The environment variable that leaves the library out: `off`."""

_SOURCE = Path(__file__).with_name("decode.c")
_NAME = "decode.so"
_COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 120
# -O3 makes most types slower (GCC 12): it unrolls what reads across.
_FLAGS = ("-std=c11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-shared", "-fPIC")
_FOR_THIS_CPU = ("-march=native",)  # not every compiler knows every CPU
_MODE, _OTHERS_WRITE = 0o755, 0o022

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Native:
    """The library, or why there is none. `compiler` is what built it, as a command."""

    library: ctypes.CDLL | None
    compiler: str = ""
    why: str = ""


def native() -> Native:
    """The library, built if it is not in the cache (about a second). Never an error: `why` says what is in the way."""
    with _lock:  # one build, however many threads ask first
        return _native()


@cache
def _native() -> Native:
    if os.environ.get(SWITCH) == "off":
        return Native(None, why=f"{SWITCH}=off")
    compiler = _compiler()
    if not compiler:
        return Native(None, why=f"there is no C compiler ({', '.join(_COMPILERS)}, or what CC names)")
    folder = cache_root() / "native" / _key(compiler)
    try:
        filled_once(folder, lambda scratch: _build(compiler, scratch / _NAME), _is_ours)
        return Native(ctypes.CDLL(str(folder / _NAME)), shlex.join(compiler))
    except (GgufmapError, OSError) as e:  # the latter: what cannot be loaded from there
        return Native(None, shlex.join(compiler), str(e))


def _compiler() -> list[str]:
    """The command of the C compiler: `CC`, as for make, else the first that is there."""
    named = shlex.split(os.environ.get("CC", ""))
    found = [path for name in (named[:1] or _COMPILERS) if (path := shutil.which(name))]
    return [found[0], *named[1:]] if found else []


def _key(compiler: list[str]) -> str:
    """What a library is good for: source, command, CPU and user. Machines may share a home folder, users a cache."""
    parts = [_SOURCE.read_text(encoding="utf-8"), *compiler, *_FLAGS, *_FOR_THIS_CPU]
    parts += [platform.machine(), _cpu(), str(os.geteuid())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu() -> str:
    """The first CPU's model and features, as Linux names them."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = iter(file.readline, "\n")  # those of the first end with an empty one
            kept = ("model name", "flags", "CPU part", "Features", "isa")
            return "".join(line for line in lines if line.startswith(kept))
    except OSError:
        return ""


def _build(compiler: list[str], target: Path) -> None:
    """Raises OSError, with what the compiler said, when it cannot."""
    for flags in ((*_FLAGS, *_FOR_THIS_CPU), _FLAGS):
        command = [*compiler, *flags, str(_SOURCE), "-o", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as e:
            raise OSError(None, f"not built within {_TIMEOUT_S} s", shlex.join(command)) from e
        if done.returncode == 0:
            target.chmod(_MODE)
            return
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    raise OSError(None, last, shlex.join(command))


def _is_ours(folder: Path) -> bool:
    """Whether there is a library that nobody but this user can have put there."""
    try:
        places = [path.stat() for path in (folder, folder / _NAME)]
    except OSError:
        return False
    return all(place.st_uid == os.geteuid() and not place.st_mode & _OTHERS_WRITE for place in places)
