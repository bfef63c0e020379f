"""The tiny checkpoints keep their promises, and llama.cpp's own converter takes every one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support import tiny_models
from support.converter import Checkpoints, TinyFactory, convert
from support.tiny_models import Dtype

# What the converter adds of its own accord: Llama 3's frequency factors, as a tensor.
EXTRA = {"llama_rope3": ["rope_freqs.weight"]}


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are far too small to be worth a second
    yield
    torch.set_num_threads(before)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_converts(tiny: TinyFactory, name: str, dtype: Dtype) -> None:
    model, path = tiny(name, dtype)
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == model.architecture
    originals = weights(model.folder)
    extra = EXTRA.get(name, [])
    assert len(reader.tensors) == len(originals) + len(extra)
    assert {t.name for t in reader.tensors} >= set(extra)
    assert ("output.weight" in {t.name for t in reader.tensors}) is ("lm_head.weight" in originals) is not model.tied
    matrix_type = {"float32": "F32", "bfloat16": "BF16"}[dtype]
    assert {t.tensor_type.name for t in reader.tensors if len(t.shape) == 2} == {matrix_type}
    assert {t.tensor_type.name for t in reader.tensors if len(t.shape) == 1} == {"F32"}
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    found = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    assert np.array_equal(found, originals["model.embed_tokens.weight"].float().numpy())


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_weights_are_random_exact_and_fit_k_quants(checkpoints: Checkpoints, name: str) -> None:
    import torch

    single, half = (weights(checkpoints.checkpoint(name, dtype).folder) for dtype in ("float32", "bfloat16"))
    config = json.loads((checkpoints.checkpoint(name, "bfloat16").folder / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert single.keys() == half.keys()
    for key, tensor in single.items():
        assert tensor.dtype == torch.float32 and half[key].dtype == torch.bfloat16
        assert torch.equal(tensor, half[key].float()), key
        assert tensor.std() > 0.01, key
        assert tensor.ndim == 1 or tensor.shape[-1] % 256 == 0, key
        if "norm" in key:
            assert torch.equal((tensor + 1) - 1, tensor), key
    assert len({tensor.numpy().tobytes() for tensor in single.values()}) == len(single)


def test_files_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("llama_rope3", "gemma3", "qwen3"):  # one per kind of tokenizer, and llama's below
        first, second = (tiny_models.write(name, tmp_path / f"{name}-{i}").folder for i in range(2))
        for path in first.iterdir():
            assert path.read_bytes() == (second / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_greedy_decoding_is_diverse(checkpoints: Checkpoints, name: str, one_thread: None) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoints.checkpoint(name).folder)
    prompt = torch.tensor([[5, 100, 200, 300, 50, 60]])
    mask = torch.ones_like(prompt)
    output = model.generate(
        prompt, attention_mask=mask, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert len(set(output[0, prompt.shape[1] :].tolist())) >= 10


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_sentencepiece_and_json_tokenizers_agree(checkpoints: Checkpoints, name: str) -> None:
    import sentencepiece
    from transformers import AutoTokenizer

    folder = checkpoints.checkpoint(name).folder
    fast = AutoTokenizer.from_pretrained(folder)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    text = "The quick (normal)  3333 foo\n\n  bar é 🦙 don't tering Kalomi"
    assert fast.encode(text, add_special_tokens=False) == model.encode(text)
    assert fast.encode(text)[0] == fast.bos_token_id
    assert len(fast) == 512


def test_converter_says_why_it_failed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="is not a directory"):
        convert(tmp_path / "absent", tmp_path / "x.gguf")


def test_splits_and_quantises(tiny: TinyFactory) -> None:
    _, first = tiny("llama", outtype="q8_0", extra=("--split-max-tensors", "10"))
    assert first.name == "llama-q8_0-00001-of-00003.gguf"
    reader = gguf.GGUFReader(first)
    assert "Q8_0" in {t.tensor_type.name for t in reader.tensors}
    assert reader.fields["split.count"].contents() == 3
