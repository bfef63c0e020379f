"""The files that the examples of the documentation are made with: one kind of trouble each."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec


def write_all(folder: Path) -> None:
    """Write them into `folder`."""
    tensors = small.llama_tensors()
    freqs = TensorSpec("rope_freqs.weight", (8,), gb.F32, _llama3_factors().tobytes())
    small.write_llama(folder / "good.gguf", tensors=[*tensors, freqs])
    small.write_llama(folder / "unmapped.gguf", tensors=[*tensors, small.tensor("blk.0.ffn_gate_exps.weight", 4, 8, 8)])
    small.write_llama(folder / "missing.gguf", tensors=small.without(tensors, "output_norm.weight"))
    retired = TensorSpec("blk.1.attn_v.weight", (64, 32), 4, bytes(2048))
    small.write_llama(folder / "mismatched.gguf", tensors=small.replaced(tensors, retired))
    synthesize = _script("synthesize")
    synthesize.write(synthesize.MODELS["glm-4.5-air"](), folder / "glm")
    _with_config(folder / "with-config")
    small.write_splits(folder / "splits", [tensors[:9], tensors[9:]])
    (folder / "splits" / "m-00002-of-00002.gguf").unlink()
    short = small.write_llama(folder / "short.gguf")
    short.write_bytes(short.read_bytes()[:-1000])
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html><title>404</title>")
    (folder / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        small.write_llama(folder / "two" / name)
    named = {key.replace("llama.", "lama."): value for key, value in small.llama_metadata().items()}
    small.write_llama(folder / "lama.gguf", named | {"general.architecture": (gb.STRING, "lama")})


def _script(name: str) -> ModuleType:
    """A module of scripts/."""
    path = Path(__file__).resolve().parents[2] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _llama3_factors(theta: float = 20_000.0) -> NDArray[np.float32]:
    """The divisors that Llama 3's scaling by 8 gives for heads of 16 dimensions."""
    wavelength = 2 * np.pi * theta ** (np.arange(8) / 8)
    smooth = np.clip((8192 / wavelength - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)


def _with_config(folder: Path) -> None:
    """A config.json beside the file that says other things than the file; bytes that belong to no tensor."""
    tensors = small.llama_tensors()
    end = sum(len(gb.tensor_bytes(x)) for x in tensors[:-1])
    last = small.tensor("output.weight", small.VOCAB, small.HIDDEN, offset=end + 64)
    path = small.write_llama(folder / "model.gguf", tensors=[*tensors[:-1], last])
    with path.open("ab") as file:
        file.write(bytes(64))
    config = {"rms_norm_eps": 1e-6, "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(config))
