"""The engine cannot tell a GGUF from its original: the same tokens with the same log-probabilities, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest
from engine import harness
from engine.conftest import TinyFolders
from support import tiny_models

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

# All of them in float32, and one of each architecture as it is usually published.
CASES = [(name, "float32") for name in tiny_models.NAMES]
CASES += [(name, "bfloat16") for name in ("llama", "qwen2", "qwen3", "gemma3")]
# What a wrong value transform would do; the test is worth nothing if it did not show.
BROKEN = {"llama": "rope_rows", "gemma3": "add"}


@dataclass
class Results:
    original: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    ours: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    broken: dict[str, dict[str, Any]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def results(folders: TinyFolders) -> Results:
    """All engines, one after the other in one process."""
    jobs, places = [], []
    found = Results()
    for name, dtype in CASES:
        model, folder = folders(name, dtype)
        for into, where, load_format in ((found.original, model.folder, "auto"), (found.ours, folder, "ggufmap")):
            jobs.append(harness.job(where, load_format, seed=name, dtype=dtype))
            places.append((into, (name, dtype)))
    for name, transform in BROKEN.items():
        jobs.append(harness.job(folders(name)[1], "ggufmap", seed=name, broken_transform=transform))
        places.append((found.broken, name))
    answers = harness.run_worker("vllm_worker", {"jobs": jobs})["results"]
    for (into, key), answer in zip(places, answers, strict=True):
        into[key] = answer
    return found


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_same_tokens_as_the_original(results: Results, name: str, dtype: str) -> None:
    original, ours = results.original[name, dtype], results.ours[name, dtype]
    assert [len(tokens) for tokens in ours["tokens"]] == [16, 16, 16]
    assert len(set(chain(*original["tokens"]))) >= 10, "too uniform to prove anything"
    assert ours["tokens"] == original["tokens"]
    assert ours["logprobs"] == original["logprobs"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_transform_would_show(results: Results, name: str) -> None:
    assert results.broken[name]["tokens"] != results.original[name, "float32"]["tokens"]
