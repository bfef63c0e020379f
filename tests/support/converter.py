"""llama.cpp's own converter, run on a checkpoint folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from support import append_draft, assets, tiny_models, tiny_moe
from support.tiny_models import Dtype, TinyModel

Outtype = Literal["f32", "f16", "bf16", "q8_0"]
_RUNNER_SCRIPT = Path(__file__).with_name("convert_runner.py")


class _Runner:
    """The process that runs the conversions, started on first need, ended with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(self, pre: str, arguments: list[str], log: Path) -> int:
        job = json.dumps({"pre": pre, "arguments": arguments, "log": str(log)})
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(job + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that runs the converter died; what it said is above")
        return int(answer)

    def _start(self) -> subprocess.Popen[str]:
        # Local files only, no GPU, no threads for tiny tensors; the path is the converter's own business, not pytest's.
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
        quiet["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, str(_RUNNER_SCRIPT), str(assets.llama_cpp_dir())]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **quiet})


_runner = _Runner()


def convert(
    folder: Path, out_file: Path, outtype: Outtype = "f32", *, pre: str = "default", extra: Sequence[str] = ()
) -> Path:
    """Convert `folder`; return the GGUF, or the first split when `extra` asks for splits.

    `pre` is the pre-tokenizer's name for byte-level BPE ("qwen2", "llama-bpe", ...). `extra` is passed on,
    such as `("--split-max-tensors", "8")`. What the converter said stays beside the GGUF, in a `.log`.
    """
    out_file.parent.mkdir(parents=True, exist_ok=True)
    log = out_file.with_suffix(".log")
    arguments = [str(folder), "--outfile", str(out_file), "--outtype", outtype, *extra]
    status = _runner.run(pre, arguments, log)
    splits = sorted(out_file.parent.glob(f"{out_file.stem}-00001-of-*{out_file.suffix}"))
    made = out_file if out_file.exists() else next(iter(splits), None)
    if status or made is None:
        said = log.read_text()[-8000:] if log.exists() else ""
        raise RuntimeError(f"the converter failed on {folder} ({status}):\n{said}")
    return made


class Checkpoints:
    """Tiny checkpoints and their GGUFs, each one made on first need and then kept for the session."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._models: dict[tuple[str, str], TinyModel] = {}
        self._files: dict[tuple[str, ...], Path] = {}

    def checkpoint(self, name: str, dtype: Dtype = "float32") -> TinyModel:
        """The checkpoint folder called `name` (see `tiny_models.NAMES`, `tiny_moe.NAMES`)."""
        key = (name, dtype)
        if key not in self._models:
            write = tiny_moe.write if name in tiny_moe.NAMES else tiny_models.write
            self._models[key] = write(name, self._root / f"{name}-{dtype}", dtype)
        return self._models[key]

    def gguf(
        self, name: str, dtype: Dtype = "float32", outtype: Outtype | None = None, *, extra: Sequence[str] = ()
    ) -> Path:
        """The GGUF of `name`; the outtype is the checkpoint's own dtype unless given.

        Where the converter drops the MTP block, it is added afterwards.
        """
        model = self.checkpoint(name, dtype)
        chosen = outtype or ("f32" if dtype == "float32" else "bf16")
        key = (name, dtype, chosen, *extra)
        if key not in self._files:
            out = self._root / f"{name}-{dtype}-gguf-{len(self._files)}" / f"{name}-{chosen}.gguf"
            self._files[key] = convert(model.folder, out, chosen, pre=model.pre, extra=extra)
            if append_draft.is_lost(name):
                append_draft.append(model, self._files[key], chosen)
        return self._files[key]


TinyFactory = Callable[..., tuple[TinyModel, Path]]
