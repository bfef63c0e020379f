"""The table of benchmarks and the cases that measure them name each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
CODE = """
import sys; sys.path.insert(0, sys.argv[1])
import cases, run
functions = {run.case_of(name) for name in run.TITLES}
print(sorted(functions ^ cases.CASES.keys()))
named = {name for case, against, _ in run.RATIOS for name in (case, against)} | {*run.SLOW} | run.LIMITS.keys()
print(sorted(named - run.TITLES.keys()))
"""


def test_every_title_is_measured_and_every_ratio_has_its_cases() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, SCRIPTS / "benchmarks"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
