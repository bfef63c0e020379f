"""The corpus through three readers: ours, gguf-py's and llama.cpp's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hostile import oracle_worker
from hostile.case import Case
from hostile.corpus import CASES, write

TESTS = Path(__file__).resolve().parents[1]
ATTEMPTS = 2
Answers = list[dict[str, str]]


def answers(name: str, cases: Sequence[Case] = CASES) -> Answers:
    """What the reader `name` makes of each case. A process that hangs as a whole is tried once more."""
    with tempfile.TemporaryDirectory() as folder:
        pairs: list[str] = []
        for index, case in enumerate(cases):
            place = Path(folder, str(index))
            place.mkdir()
            pairs += [case.stage, str(write(case, place))]
        command = [sys.executable, oracle_worker.__file__, name, *pairs]
        path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        for attempt in range(ATTEMPTS):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=1200, env=os.environ | {"PYTHONPATH": path}
                )
            except subprocess.TimeoutExpired:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            assert done.returncode == 0, done.stderr[-2000:]
            found: Answers = json.loads(done.stdout)
            return found
    raise AssertionError("the last attempt returns or raises")


def unexplained(found: Answers, cases: Sequence[Case] = CASES) -> list[str]:
    """Cases that llama.cpp reads, that we refuse, and that give no reason."""
    return [
        f"{case.kind}: {case.name}"
        for case, answer in zip(cases, found, strict=True)
        if answer["outcome"] == "read" and case.ours is not None and not case.why
    ]
