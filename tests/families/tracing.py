"""Preflights with a trace, and other questions to vLLM: one process imports it and answers in forks of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ggufmap.errors import MissingDependencyError
from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.target import client
from ggufmap.target.devices import World

_SERVER = Path(__file__).with_name("vllm_server.py")


class Tracer:
    """`tracer(path, draft=None)`: what `ggufmap audit` finds with vLLM, each pair of files once.

    With `cuda_env` (what scripts/cuda-dryrun makes), with the vLLM there and for the simulated GPU `device`.
    """

    def __init__(self, cuda_env: Path | None = None, device: str = "") -> None:
        self._python = sys.executable if cuda_env is None else str(cuda_env / "bin" / "python")
        self._environment = {**client._QUIET, **os.environ, "OMP_NUM_THREADS": "1"}
        if cuda_env is not None:
            self._environment["LD_LIBRARY_PATH"] = str(cuda_env / "lib" / client._STUB_FOLDER.name)
        self._arguments = [device] if device else []
        self._world = World(device) if device else None
        self._process: subprocess.Popen[str] | None = None
        self._found: dict[tuple[Path, Path | None], Preflight] = {}

    def __call__(self, path: Path, draft: Path | None = None) -> Preflight:
        key = (path, draft)
        if key not in self._found:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(client, "_ask", lambda request, environment: self.ask("trace", request))
                patch.setattr(client, "_environment", lambda device: {})  # that of our own process
                self._found[key] = preflight(path, draft=draft, world=self._world)
            self._found[key].checkpoint.close()
        return self._found[key]

    def ask(self, call: str, request: Any) -> Any:
        """Call a function of `vllm_questions.py`, or the worker (`trace`); its answer."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [self._python, str(_SERVER), *self._arguments],
                stdin=pipe,
                stdout=pipe,
                text=True,
                env=self._environment,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as scratch:
            files = {name: Path(scratch) / name for name in ("request", "answer", "log")}
            files["request"].write_text(json.dumps(request))
            job = {"call": call, **{name: str(file) for name, file in files.items()}}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline().strip()
            log = files["log"].read_text()[-3000:] if files["log"].exists() else ""
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
