"""Engines are slow to start: what several tests look at is run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine import harness
from support.converter import TinyFactory
from support.tiny_models import Dtype, TinyModel


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own, here and in every process that they start."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("GGUFMAP_CACHE", str(folder))
        yield folder


TinyFolders = Callable[..., tuple[TinyModel, Path]]


@pytest.fixture(scope="session")
def folders(tiny: TinyFactory, tmp_path_factory: pytest.TempPathFactory) -> TinyFolders:
    """`folders(name, dtype="float32")` -> (the original checkpoint, the model directory of its GGUF)."""
    root = tmp_path_factory.mktemp("folders")
    made: dict[tuple[str, str], tuple[TinyModel, Path]] = {}

    def make(name: str, dtype: Dtype = "float32") -> tuple[TinyModel, Path]:
        if (name, dtype) not in made:
            model, gguf = tiny(name, dtype)
            made[name, dtype] = model, harness.model_dir(gguf, root / f"{name}-{dtype}")
        return made[name, dtype]

    return make
