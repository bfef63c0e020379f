"""What the engine tests share: worker processes, model directories, and their environment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.config import build_config

HERE = Path(__file__).parent
TIMEOUT_S = 1500  # below the tests' own, so that the log of a worker that hangs is shown
TRIES = 3
PROMPT_LENGTHS = (5, 21, 40)  # the tiny Gemma's window has 16 tokens

QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


WORKERS = {"TORCHDYNAMO_DISABLE": "1"}
"""For a worker: vLLM compiles how it ranks log-probabilities, up to half a minute of a compiler in each process; in
eager mode the same ranks come out."""


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with what keeps an engine small, quiet and offline."""
    kept = {name: value for name, value in os.environ.items() if name != "VLLM_PLUGINS"}
    return {**kept, **QUIET, **_cores(), **changes}


def _cores() -> dict[str, str]:
    """This test process's share of the cores: engines of several do not wait for one another's threads then."""
    index = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = sorted(os.sched_getaffinity(0))[index::count]
    if count == 1 or not mine:
        return {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}  # or vLLM leaves one core to itself
    return {"OMP_NUM_THREADS": str(len(mine)), "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, mine))}


def run_worker(name: str, request: dict[str, Any], **changes: str) -> dict[str, Any]:
    """Run `<name>.py` of this folder in a process of its own; its answer. An AssertionError shows its log."""
    with tempfile.TemporaryDirectory(prefix="ggufmap-engine-") as scratch:
        question, answer, log = (Path(scratch) / file for file in ("request.json", "answer.json", "log"))
        question.write_text(json.dumps(request))
        command = [sys.executable, str(HERE / f"{name}.py"), str(question), str(answer)]
        with log.open("wb") as out:
            for _ in range(TRIES):
                status = _run(command, out, environment(**{**WORKERS, **changes}), scratch)
                if status != -signal.SIGALRM:  # the worker itself says that it hangs
                    break
        if status != 0 or not answer.exists():
            raise AssertionError(f"{name} failed ({status}):\n{log.read_text(errors='replace')[-6000:]}")
        result: dict[str, Any] = json.loads(answer.read_text())
        return {**result, "log": log.read_text(errors="replace")}


def _run(command: list[str], out: BinaryIO, env: dict[str, str], folder: str) -> int | str:
    try:
        return subprocess.run(command, env=env, stdout=out, stderr=out, timeout=TIMEOUT_S, cwd=folder).returncode
    except subprocess.TimeoutExpired:
        return f"still running after {TIMEOUT_S} s"


def model_dir(gguf: Path, folder: Path) -> Path:
    """The model directory for `gguf`, as `ggufmap config` writes it."""
    with open_checkpoint(gguf, look_beside=True) as checkpoint:
        config = build_config(checkpoint, find_architecture(checkpoint.architecture, str(gguf)))
        return build_model_dir(checkpoint, config, output=folder)


def prompts(seed: str) -> list[list[int]]:
    """Three prompts of token ids that every tiny model has, the same for the same seed."""
    numbers = random.Random(seed)
    return [[numbers.randrange(3, 500) for _ in range(length)] for length in PROMPT_LENGTHS]


def job(folder: Path, load_format: str, seed: str = "", **changes: Any) -> dict[str, Any]:
    """A job for `vllm_worker`: three prompts, sixteen tokens each, greedily, in float32."""
    standard = {"prompts": prompts(seed), "max_tokens": 16, "dtype": "float32"}
    return {"model": str(folder), "load_format": load_format, **standard, **changes}
