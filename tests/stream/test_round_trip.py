"""Checkpoint -> llama.cpp's own converter -> ggufmap gives the checkpoint back: every tensor bit for bit, every key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.converter import TinyFactory
from support.tiny_models import NAMES, Dtype, TinyModel

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Plan, resolve
from ggufmap.modeldir.config import config_from_header
from ggufmap.stream import stream

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
TORCH: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Keys of an original config.json that the made one may say otherwise or not at all, and why.
DIFFERENT = {
    "dtype": "the file has a type per tensor; vLLM is told bfloat16 as long as nobody says otherwise",
    "transformers_version": "says who wrote the file, which is ggufmap",
    "max_window_layers": "read only with use_sliding_window, which is false",
    "_sliding_window_pattern": "layer_types says the same, layer by layer",
    "use_bidirectional_attention": "false is the class's default, and no GGUF of such a model exists",
}
DIFFERENT_BY_MODEL = {
    "mistral": {
        "architectures": "both classes compute the same, and the header does not tell them apart",
        "model_type": "goes with the class",
    }
}


def load(path: Path, dtype: torch.dtype) -> tuple[Plan, dict[str, torch.Tensor]]:
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))
        pairs = list(stream(plan, checkpoint, dtype))
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names)
    return plan, dict(pairs)


def assert_is_the_original(model: TinyModel, path: Path) -> None:
    original = load_file(model.folder / "model.safetensors")
    plan, found = load(path, TORCH[model.dtype])
    assert plan.ok, plan.problems()
    assert found.keys() == original.keys()
    for name, expected in original.items():
        tensor = found[name]
        # Vectors are stored as F32 whatever they were: nothing is lost on the way there and back.
        assert torch.equal(tensor.double(), expected.double()), name
        bits = BITS[expected.dtype]
        assert torch.equal(tensor.to(expected.dtype).view(bits), expected.view(bits)), name
        assert tensor.shape == expected.shape
    assert all(parameter in found for assignment in plan.assignments for parameter in assignment.checkpoint)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_comes_back(tiny: TinyFactory, name: str, dtype: Dtype) -> None:
    model, path = tiny(name, dtype)
    assert_is_the_original(model, path)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_key_comes_back(tiny: TinyFactory, name: str) -> None:
    model, path = tiny(name)
    original = json.loads((model.folder / "config.json").read_text())
    with open_checkpoint(path) as checkpoint:
        made = config_from_header(checkpoint, find_architecture(checkpoint.architecture, str(path))).values
    allowed = DIFFERENT | DIFFERENT_BY_MODEL.get(name, {})
    different = {
        key: (value, made.get(key)) for key, value in original.items() if made.get(key) != value and key not in allowed
    }
    assert different == {}
    # What is allowed to differ is not simply absent for everybody.
    assert made["architectures"] and made["model_type"]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_three_splits_are_one_model(tiny: TinyFactory, name: str) -> None:
    model, first = tiny(name, extra=("--split-max-tensors", "8" if name == "llama" else "32"))
    members = sorted(first.parent.glob(f"{first.stem.rsplit('-', 3)[0]}-*.gguf"))
    assert len(members) >= 3
    for path in (members[0], members[-1], first.parent):
        assert_is_the_original(model, path)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_quantised_matrices_are_what_gguf_py_makes_of_them(tiny: TinyFactory, name: str) -> None:
    import gguf
    import numpy as np

    _, path = tiny(name, outtype="q8_0")
    plan, found = load(path, torch.float32)
    assert plan.ok
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    quantised = 0
    for assignment in plan.assignments:
        tensor = tensors[assignment.tensors[0]]
        if tensor.tensor_type.name != "Q8_0" or assignment.transform.name != "copy":
            continue
        quantised += 1
        reference = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(found[assignment.checkpoint[0]].numpy(), reference)
    assert quantised >= 14


def test_a_packed_permuted_matrix_is_the_same_rows(tiny: TinyFactory) -> None:
    """Rows move as a whole, so that un-permuting before or after the decoding is the same."""
    model, path = tiny("llama", outtype="q8_0")
    _, exact = tiny("llama")
    config = json.loads((model.folder / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found, original = load(path, torch.float32)[1], load(exact, torch.float32)[1]
    for name, head_count in heads.items():
        rows = found[f"model.layers.1.self_attn.{name}.weight"]
        expected = original[f"model.layers.1.self_attn.{name}.weight"]
        close = torch.isclose(rows, expected, atol=0.01).all(dim=1)
        assert close.all(), f"{name} with {head_count} heads"


@pytest.mark.parametrize("name", ["llama_tied", "gemma3", "qwen3_wide"])
def test_tied_models_have_no_head(tiny: TinyFactory, name: str) -> None:
    _, path = tiny(name)
    plan, found = load(path, torch.float32)
    assert "lm_head.weight" not in found
    assert [(p.tensor, p.reason) for p in plan.phantom if p.tensor == "output.weight"] == [
        ("output.weight", "optional: tied to token_embd.weight")
    ]
