"""A vLLM that can hold packed weights on the CPU, in a process of its own (`packed_server.py`), started when needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ggufmap.errors import MissingDependencyError
from ggufmap.target import client
from support import packed_ops

_SERVER = Path(__file__).with_name("packed_server.py")


class PackedVllm:
    """`ask("trace", request)`, `ask("layers", request)`; with `answering()`, ggufmap's own traces go there too."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, call: str, request: Any) -> Any:
        """The answer; MissingDependencyError with the process's last words, as the trace's client raises it."""
        if self._process is None:
            pipe = subprocess.PIPE
            environment = {**client._QUIET, **os.environ, **packed_ops.environment()}
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER)], stdin=pipe, stdout=pipe, text=True, env=environment
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as scratch:
            files = {name: Path(scratch) / name for name in ("request", "answer", "log")}
            files["request"].write_text(json.dumps(request))
            job = {"call": call, **{name: str(file) for name, file in files.items()}}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline().strip()
            log = files["log"].read_text()[-4000:] if files["log"].exists() else ""
            if status != "0":
                raise MissingDependencyError(f"{call} failed ({status or 'the process died'}):\n{log}")
            return json.loads(files["answer"].read_text())

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While active, traces of this process are answered by a vLLM with packed layers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_ask", lambda request, environment: self.ask("trace", request))
            yield

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
