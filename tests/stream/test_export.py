"""An export is the original checkpoint again, never half of one, and goes on where it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.converter import Checkpoints

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import UsageError
from ggufmap.mapping import resolve
from ggufmap.stream.export import INDEX, Exported, export


def _export(gguf: Path, folder: Path, shard_bytes: int = 1 << 20, dtype: torch.dtype = torch.float32) -> Exported:
    with open_checkpoint(gguf) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(gguf)))
        return export(plan, checkpoint, folder, dtype=dtype, shard_bytes=shard_bytes)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    shards = {file: load_file(folder / file) for file in set(weight_map.values())}
    return {name: shards[file][name] for name, file in weight_map.items()}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_export_equals_the_original(checkpoints: Checkpoints, tmp_path: Path, name: str) -> None:
    done = _export(checkpoints.gguf(name), tmp_path / "out")
    original = load_file(checkpoints.checkpoint(name).folder / "model.safetensors")
    exported = _tensors(tmp_path / "out")
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[key].float(), original[key].float()) for key in original)
    assert len(done.files) > 1 and done.reused == 0


def test_transformers_loads_it_and_answers_alike(checkpoints: Checkpoints, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    command = [sys.executable, "-m", "ggufmap.cli.main", "export", str(checkpoints.gguf("llama")), "-o", str(out)]
    env = {**os.environ, "GGUFMAP_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([*command, "--dtype", "float32"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = checkpoints.checkpoint("llama").folder
    ids = torch.tensor([[1, 5, 300, 7]])
    ours = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)(ids).logits
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
    assert torch.equal(ours, theirs)
    assert AutoTokenizer.from_pretrained(out)("hello").input_ids


def test_an_unfinished_export_goes_on(checkpoints: Checkpoints, tmp_path: Path) -> None:
    gguf, out = checkpoints.gguf("llama"), tmp_path / "out"
    first = _export(gguf, tmp_path / "whole")
    _export(gguf, out)
    # As a kill leaves it: no index, one shard gone, one half written under its temporary name, the claim still there.
    (out / INDEX).unlink()
    (out / first.files[1]).unlink()
    (out / f".{first.files[1]}.partial").write_bytes(b"half")
    state = {"dtype": "torch.float32", "shard_bytes": 1 << 20}
    with open_checkpoint(gguf) as checkpoint:
        (out / ".ggufmap-export.json").write_text(json.dumps({"header_hash": checkpoint.header_hash(), **state}))
    again = _export(gguf, out)
    assert again.reused == len(first.files) - 1
    assert all(
        torch.equal(a, b) for a, b in zip(_tensors(out).values(), _tensors(tmp_path / "whole").values(), strict=True)
    )


def test_a_killed_export_never_looks_whole(gemma: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ggufmap.cli.main", "export", str(gemma), "-o", str(out), "--shard-size", "30M"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any(out.glob("model-*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(out.glob("model-*.safetensors"))
    assert not (out / INDEX).exists() and not (out / "config.json").exists()


def test_a_folder_with_something_else_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        _export(checkpoints.gguf("llama"), tmp_path)


def test_another_files_unfinished_export_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    (tmp_path / ".ggufmap-export.json").write_text("{}")
    with pytest.raises(UsageError, match="another file"):
        _export(checkpoints.gguf("llama"), tmp_path)


def test_values_beyond_float16_are_counted(tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    for key, value in (("block_count", 1), ("attention.head_count", 1)):
        writer.add_uint32(f"qwen3.{key}", value)
    values = np.full((4, 32), 1e5, dtype=np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from dataclasses import replace

    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture("qwen3", str(path)))
        plan = replace(plan, missing=())  # one tensor is enough here
        done = export(plan, checkpoint, tmp_path / "out", dtype=torch.float16, shard_bytes=1 << 20)
    assert done.out_of_range == 128
