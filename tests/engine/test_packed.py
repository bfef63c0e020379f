"""Packed weights in vLLM's CPU engine, kernels replaced: the same text as with the same file's dense weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from engine import harness
from support import conformance, packed_models, packed_ops
from support.packed_vllm import PackedVllm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

TOLERANCE = 1e-3  # log-probabilities; products are summed in another order
NAMES = ("llama", "moe")


@pytest.fixture(scope="module")
def vllm() -> Iterator[PackedVllm]:
    packed_ops.fetch()
    found = PackedVllm()
    yield found
    found.close()


@pytest.fixture(scope="module")
def answers(vllm: PackedVllm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Name -> what the packed and the dense engine say."""
    root: Path = tmp_path_factory.mktemp("packed")
    cases = {"llama": packed_models.llama(3), "moe": packed_models.moe(3)}
    mixes = {"llama": packed_models.LLAMA_MIXES[1], "moe": packed_models.MOE_MIXES[0]}
    jobs = []
    for name in NAMES:
        choose = packed_models.by_layer((), "Q4_0", "Q8_0")
        source = conformance.make(cases[name], root / name).gguf
        path = packed_models.quantised(
            source,
            root / f"{name}.gguf",
            lambda layer, module, choose=choose, mix=mixes[name]: (
                mix.get(module, "Q8_0") if layer == 2 else choose(layer, module)
            ),
        )
        made = packed_models.folders(vllm, path, root / "cache")
        assert made.plan.storage is not None and any(group.packed for group in made.plan.storage.groups)
        jobs += [harness.job(folder, "ggufmap", seed=name) for folder in (made.packed, made.dense)]
    results = harness.run_worker("packed_worker", {"jobs": jobs}, **packed_ops.environment())["results"]
    return {name: results[2 * index : 2 * index + 2] for index, name in enumerate(NAMES)}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens(answers: dict[str, list[dict[str, Any]]], name: str) -> None:
    packed, dense = answers[name]
    assert len(set(chain(*dense["tokens"]))) >= 10, "too uniform to prove anything"
    assert packed["tokens"] == dense["tokens"]
    pairs = zip(chain(*packed["logprobs"]), chain(*dense["logprobs"]), strict=True)
    assert max(abs(ours - theirs) for ours, theirs in pairs) < TOLERANCE
