"""A process that imported vLLM once and answers many questions, each in a fork of itself: the client's side.

A script of such a process reads a JSON job per line, `{"call", "request", "answer", "log"}` (the last three are files),
and writes an exit status per line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ggufmap.errors import MissingDependencyError


class VllmProcess:
    """Starts `script` when it is first asked."""

    def __init__(
        self, script: Path, environment: Mapping[str, str], python: str = sys.executable, arguments: Sequence[str] = ()
    ) -> None:
        self._command = [python, str(script), *arguments]
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def ask(self, call: str, request: Any) -> Any:
        """The answer; MissingDependencyError with the process's last words, as the trace's client raises it."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True, env=self._environment)
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as scratch:
            files = {name: Path(scratch) / name for name in ("request", "answer", "log")}
            files["request"].write_text(json.dumps(request))
            job = {"call": call, **{name: str(file) for name, file in files.items()}}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline().strip()
            log = files["log"].read_text()[-20_000:] if files["log"].exists() else ""
            if not status:
                self.close()  # the next question gets a new one
                raise MissingDependencyError(f"{call} failed: the process that asks vLLM died")
            if status != "0":
                raise MissingDependencyError(f"{call} failed ({status}):\n{log}")
            return json.loads(files["answer"].read_text())

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()  # it holds nothing, and a vLLM takes its time to leave
            self._process.wait()
            self._process = None
