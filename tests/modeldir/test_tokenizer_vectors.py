"""Ids equal to llama.cpp's own published vectors: every set whose tokenizer model can be built, every string."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import gguf_bytes as gb
from tokenizers import Tokenizer, pre_tokenizers

from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir.tokenizer import KNOWN_MODELS, TokenizerFiles, build_tokenizer

# tests/test-tokenizer-0.cpp: no special tokens added, control tokens not parsed (no string holds one).
SEPARATOR = "\n__ggml_vocab_test__\n"

EXPECTED_SETS = {
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm"),
    *("mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
}
MODEL_TYPES = {"command-r": "cohere", "gemma4": "gemma4_text", "refact": "gpt_refact"}


@dataclass(frozen=True)
class VectorSet:
    name: str
    gguf: Path
    texts: list[str]
    ids: list[list[int]]


@pytest.fixture(scope="module")
def vector_sets(llama_cpp: Path) -> dict[str, VectorSet]:
    found = {}
    for gguf in sorted((llama_cpp / "models").glob("ggml-vocab-*.gguf")):
        inputs, outputs = (gguf.with_name(gguf.name + suffix) for suffix in (".inp", ".out"))
        with open_checkpoint(gguf, check=False) as checkpoint:
            known = checkpoint.metadata.string("tokenizer.ggml.model") in KNOWN_MODELS
        if known and inputs.exists():
            texts = inputs.read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
            ids = [[int(x) for x in line.split()] for line in outputs.read_text().splitlines()]
            name = gguf.stem.removeprefix("ggml-vocab-")
            found[name] = VectorSet(name, gguf, texts, ids)
    return found


def files_of(gguf: Path) -> tuple[TokenizerFiles, str]:
    with open_checkpoint(gguf, check=False) as checkpoint:
        return build_tokenizer(checkpoint.metadata), checkpoint.architecture


def write_directory(folder: Path, files: TokenizerFiles, model_type: str) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(files.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps(files.config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name, text in files.modules.items():
        (folder / name).write_text(text)
    return folder


def differences(vectors: VectorSet, encode: Any) -> list[tuple[str, list[int], list[int]]]:
    pairs = zip(vectors.texts, vectors.ids, strict=True)
    return [(text, ids, got) for text, ids in pairs if (got := encode(text)) != ids]


def test_all_published_sets_are_found(vector_sets: dict[str, VectorSet]) -> None:
    assert vector_sets.keys() == EXPECTED_SETS
    for found in vector_sets.values():
        assert len(found.texts) == len(found.ids) >= 46


@pytest.mark.parametrize("name", sorted(EXPECTED_SETS))
def test_ids_equal_the_published_ones(name: str, vector_sets: dict[str, VectorSet], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    vectors = vector_sets[name]
    files, architecture = files_of(vectors.gguf)
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    assert differences(vectors, lambda text: tokenizer.encode(text, add_special_tokens=False).ids) == []

    model_type = MODEL_TYPES.get(architecture, architecture)
    loaded = AutoTokenizer.from_pretrained(write_directory(tmp_path / "model", files, model_type))
    assert loaded.is_fast
    assert differences(vectors, lambda text: loaded.encode(text, add_special_tokens=False)) == []
    assert len(loaded) == files.vocab_size
    assert not files.warnings


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3_5", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp"])
@pytest.mark.parametrize("trust", [False, True])
def test_transformers_does_not_put_its_own_tokenizer_in_place(
    model_type: str, trust: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These model types make transformers rebuild the tokenizer, with NFC: e + U+0301 would become one letter."""
    from transformers import AutoTokenizer, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    entries: list[gb.Entry] = [
        ("general.architecture", gb.STRING, "qwen2"),
        ("tokenizer.ggml.model", gb.STRING, "gpt2"),
        ("tokenizer.ggml.pre", gb.STRING, "qwen2"),
        ("tokenizer.ggml.tokens", gb.ARRAY, gb.Array(gb.STRING, alphabet)),
        ("tokenizer.ggml.merges", gb.ARRAY, gb.Array(gb.STRING, [])),
    ]
    (tmp_path / "small.gguf").write_bytes(gb.build(entries))
    files, _ = files_of(tmp_path / "small.gguf")
    folder = write_directory(tmp_path / "model", files, model_type)
    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
    text = "cafe\u0301 \u212b"
    assert loaded.encode(text) == Tokenizer.from_str(files.tokenizer_json).encode(text).ids
    assert loaded.decode(loaded.encode(text)) == text


def test_sets_without_vectors_build(llama_cpp: Path) -> None:
    for name in ("aquila", "baichuan", "gpt-neox"):
        files, _ = files_of(llama_cpp / "models" / f"ggml-vocab-{name}.gguf")
        assert Tokenizer.from_str(files.tokenizer_json).get_vocab_size() == files.vocab_size
        assert files.warnings  # no pre-tokenizer named, or tied scores
