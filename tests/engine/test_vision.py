"""Models with a vision tower in vLLM: a text and its projector generate what the original does, of images as well.

PyPI has no torchvision for a CPU-only torch. Gemma 3's processor does without; Qwen's does not, so that of these only
the text is generated here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine import harness
from support import conformance

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

NAMES = ("gemma3_vision", "qwen25vl", "qwen3vl")
IMAGE = {"gemma3_vision": {"prompt": "The quick <start_of_image> fox jumps over the dog", "seeds": [1, 2]}}
Pair = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """By name: the answers of the original's engine and of ours, one after the other in one process."""
    root, jobs = tmp_path_factory.mktemp("vision"), []
    for name in NAMES:
        made = conformance.make(conformance.all_cases()[name], root)
        ours: Path = harness.model_dir(made.gguf, root / f"{name}-dir")
        for where, load_format in ((made.folder, "auto"), (ours, "ggufmap")):
            jobs.append(harness.job(where, load_format, name, image=IMAGE.get(name)))
    answers = harness.run_worker("vision_worker", {"jobs": jobs})["results"]
    return dict(zip(NAMES, zip(answers[::2], answers[1::2], strict=True), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_same_text_as_the_original(results: dict[str, Pair], name: str) -> None:
    original, ours = results[name]
    assert [len(tokens) for tokens in ours["tokens"]] == [16, 16, 16]
    assert ours["tokens"] == original["tokens"]


@pytest.mark.parametrize("name", IMAGE)
def test_same_of_images_as_the_original(results: dict[str, Pair], name: str) -> None:
    original, ours = results[name]
    assert ours["images"] == original["images"]
    one, other = ours["images"]
    assert one["prompt"] == other["prompt"] and one["logprobs"] != other["logprobs"], "the image makes no difference"
