"""Real files that the tests read, fetched on first need by `scripts/fetch_assets.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def _fetcher() -> ModuleType:
    # scripts/ is no package, and putting it on sys.path would make every script importable by its bare name.
    spec = importlib.util.spec_from_file_location("fetch_assets", ROOT / "scripts" / "fetch_assets.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gemma_path() -> Path:
    """Gemma 3 270M at Q4_K_M: a whole real model."""
    return Path(_fetcher().fetch_gemma())


def qwen_header_path() -> Path:
    """The first 100 MB of a real 7B Qwen2 file: its whole header, its tensor data cut short."""
    return Path(_fetcher().fetch_qwen())


def upstream_dir() -> Path:
    """`PACKAGE-VERSION/` folders like site-packages, with the files of stock GGUF loaders that patches are for."""
    return Path(_fetcher().fetch_upstream())


def llama_cpp_dir() -> Path:
    """llama.cpp's converter, its gguf-py, and `models/ggml-vocab-*.gguf` with `.inp`/`.out` vectors,
    `models/templates/*.jinja`.
    """
    return Path(_fetcher().fetch_llama_cpp())
