"""Fixtures that several test files share. What is slow to make is made once per session, on first need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# Before anything imports vLLM or a hub client: the tests' models are local files.
for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import pytest  # noqa: E402
from support import assets  # noqa: E402
from support.converter import Checkpoints, Outtype, TinyFactory  # noqa: E402
from support.tiny_models import Dtype, TinyModel  # noqa: E402


@pytest.fixture(scope="session")
def gemma() -> Path:
    """A whole real model: Gemma 3 270M, Q4_K_M."""
    return assets.gemma_path()


@pytest.fixture(scope="session")
def qwen_header() -> Path:
    """A real Qwen2 7B file cut off after 100 MB: header whole, tensor data not."""
    return assets.qwen_header_path()


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """llama.cpp's converter, gguf-py and vocabularies."""
    return assets.llama_cpp_dir()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Tiny checkpoints and their GGUFs by name."""
    return Checkpoints(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(checkpoints: Checkpoints) -> TinyFactory:
    """`tiny(name, dtype="float32", outtype=None, extra=())` -> (checkpoint, GGUF path)."""

    def make(
        name: str, dtype: Dtype = "float32", outtype: Outtype | None = None, extra: Sequence[str] = ()
    ) -> tuple[TinyModel, Path]:
        return checkpoints.checkpoint(name, dtype), checkpoints.gguf(name, dtype, outtype, extra=extra)

    return make
