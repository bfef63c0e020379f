"""One target, many files, in one process: with atheris (coverage shows the way) where it is installed, else by chance.

Arguments: target, folder for findings, number of files, seconds. The figures are in FOLDER/TARGET.ENGINE.json, a file
that raises or hangs beside it; the loop goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HANG = 10.0
"""CPU seconds of one file."""

ATHERIS, MUTATIONS = "atheris", "mutations"

_WRITE_EVERY = 500


def engine() -> str:
    """What makes the files here."""
    return MUTATIONS if importlib.util.find_spec("atheris") is None else ATHERIS


def result(folder: Path, target: str, engine: str) -> Path:
    """Where the figures are."""
    return folder / f"{target}.{engine}.json"


class Hang(BaseException):
    """A file took longer than HANG."""


class Loop:
    """Runs the target on one file after another and keeps the figures."""

    def __init__(self, name: str, engine: str, check: Any, folder: Path, files: int) -> None:
        self.name, self.engine, self.check, self.folder, self.most = name, engine, check, folder, files
        self.files = 0
        self.slowest = 0.0
        self.found: dict[str, str] = {}
        self.base = self.peak()
        signal.signal(signal.SIGPROF, self._hang)

    def one(self, data: bytes) -> None:
        """Run one file."""
        self.files += 1
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, HANG)
        try:
            self.check(bytes(data))
        except (Exception, Hang) as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            self._keep(f"{type(e).__name__} at {Path(last.filename).name}:{last.lineno}", data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        self.slowest = max(self.slowest, time.process_time() - started)
        if self.files % _WRITE_EVERY == 0 or self.files == self.most:
            self.write()

    @staticmethod
    def peak() -> int:
        """The highest memory of this process so far, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def write(self) -> None:
        """Write the figures."""
        figures = {
            "target": self.name,
            "engine": self.engine,
            "files": self.files,
            "crashes": sorted(where for where in self.found if not where.startswith("Hang")),
            "hangs": sorted(where for where in self.found if where.startswith("Hang")),
            "slowest_seconds": round(self.slowest, 3),
            "peak_bytes": self.peak(),
            "start_bytes": self.base,
        }
        result(self.folder, self.name, self.engine).write_text(json.dumps(figures, indent=1))

    def _keep(self, where: str, data: bytes) -> None:
        if where not in self.found:
            file = self.folder / f"{self.name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
            file.write_bytes(data)
            self.found[where] = file.name
            print(f"{self.name}: {where}: {file}", flush=True)
            self.write()

    @staticmethod
    def _hang(*_: object) -> None:
        raise Hang


def main() -> None:
    """See the module."""
    name, place, files, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if engine() == ATHERIS:
        _guided(name, place, files, seconds)
    else:
        _by_chance(name, place, files, seconds)


def _by_chance(name: str, place: Path, files: int, seconds: int) -> None:
    from hostile.mutate import mutations
    from hostile.targets import TARGETS

    loop = Loop(name, MUTATIONS, TARGETS[name].check, place, files)
    until = time.monotonic() + seconds
    for data in mutations(TARGETS[name].seeds(), seed=time.time_ns()):
        loop.one(data)
        if loop.files >= files or time.monotonic() > until:
            break
    loop.write()


def _guided(name: str, place: Path, files: int, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["ggufmap"]):
        from hostile.targets import TARGETS
    loop = Loop(name, ATHERIS, TARGETS[name].check, place, files)
    corpus = place / f"{name}-corpus"
    corpus.mkdir(exist_ok=True)
    for data in TARGETS[name].seeds():
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    options = [f"-runs={files}", f"-max_total_time={seconds}", "-timeout=600", "-rss_limit_mb=4096", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options, "-max_len=16384", "-verbosity=0", str(corpus)], loop.one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
