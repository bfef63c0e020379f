"""What vllm-gguf-plugin makes of a file, in a process of its own: `peer_runner.py FOLDER GGUF ANSWER`.

FOLDER is the original checkpoint, which the plugin needs beside the file. The answer is {"equal", "wrong", "missing",
"extra"}, counted over the checkpoint's tensors, or {"refuses": why}. It is asked as its loader asks it: prepare, then
every weight. No module of the tests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig
    from vllm_gguf_plugin.weights_adapter import get_weights_adapter

    folder, gguf, answer = map(Path, sys.argv[1:])
    originals = {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}
    try:
        hf_config = AutoConfig.from_pretrained(folder)
        config = SimpleNamespace(
            hf_config=hf_config,
            trust_remote_code=False,
            dtype=torch.float32,
            model=str(gguf),
            model_weights=str(gguf),
            revision=None,
        )
        adapter = get_weights_adapter(hf_config)
        adapter.prepare_loading(str(gguf), config)
        found = {name: tensor.float() for name, tensor in adapter.prepare_weights(config)}
    except Exception as e:
        result: dict[str, Any] = {"refuses": f"{type(e).__name__}: {' '.join(str(e).split())}"[:300]}
    else:
        both = set(found) & set(originals)
        equal = sum(_equal(found[name], originals[name].float()) for name in both)
        result = {
            "equal": equal,
            "wrong": len(both) - equal,
            "missing": len(set(originals) - both),
            "extra": len(set(found) - both),
        }
    answer.write_text(json.dumps(result))


def _equal(ours: Any, theirs: Any) -> bool:
    """To its credit within a rounding: nothing of the converter is undone exactly."""
    import torch

    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
