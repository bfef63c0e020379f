"""Preflights with a trace, and other questions to vLLM: one process imports it and answers in forks of itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.vllm_process import VllmProcess

from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.target import client
from ggufmap.target.devices import World

_SERVER = Path(__file__).with_name("vllm_server.py")


class Tracer(VllmProcess):
    """`tracer(path, draft=None)`: what `ggufmap audit` finds with vLLM, each pair of files once.

    `ask` also calls the functions of `vllm_questions.py`.
    With `cuda_env` (what scripts/cuda-dryrun makes), with the vLLM there and for the simulated GPU `device`.
    """

    def __init__(self, cuda_env: Path | None = None, device: str = "") -> None:
        environment = {**client._QUIET, **os.environ, "OMP_NUM_THREADS": "1"}
        if cuda_env is not None:
            environment["LD_LIBRARY_PATH"] = str(cuda_env / "lib" / client._STUB_FOLDER.name)
        python = sys.executable if cuda_env is None else str(cuda_env / "bin" / "python")
        super().__init__(_SERVER, environment, python, [device] if device else [])
        self._world = World(device) if device else None
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
