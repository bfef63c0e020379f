"""Drafts at work: a GGUF with an MTP block drafts as its original does, token by token, accepted or not.

The models are made for it (`support/tiny_moe.py`): the `echo` draft predicts exactly what the target does when both
have their own weights, the `near` draft does so now and then, depending on every weight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine import harness
from engine.conftest import TinyFolders
from support import tiny_moe
from support.converter import TinyFactory
from support.tiny_models import Dtype

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.config import build_config

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

# vLLM's fastest latent attention on a CPU has no float32.
DTYPES: dict[str, Dtype] = {"glm46": "float32", "deepseek_v3": "bfloat16"}
NAMES = [f"{family}_{kind}" for family in DTYPES for kind in ("echo", "near")]
TOKENS, PROMPTS = 24, len(harness.PROMPT_LENGTHS)
MTP = {"method": "mtp", "num_speculative_tokens": 1}
IN_PARALLEL = "glm46_near"

Results = dict[str, dict[str, Any]]


def dtype_of(name: str) -> Dtype:
    return DTYPES[name.rpartition("_")[0]]


def job(folders: TinyFolders, name: str, *, ours: bool, **changes: Any) -> dict[str, Any]:
    original, folder = folders(name, dtype_of(name))
    standard = {"dtype": dtype_of(name), "max_tokens": TOKENS, "speculative": MTP, "tensor_parallel": 1, **changes}
    where, load_format = (folder, "ggufmap") if ours else (original.folder, "auto")
    return harness.job(where, load_format, seed=name, **standard)


def two_files(tiny: TinyFactory, folder: Path) -> Path:
    """The model directory of a trunk and a draft that the converter wrote to files of their own."""
    trunk, draft = (tiny(IN_PARALLEL, dtype_of(IN_PARALLEL), extra=(option,))[1] for option in ("--no-mtp", "--mtp"))
    with open_checkpoint(trunk, draft=draft) as checkpoint:
        config = build_config(checkpoint, find_architecture(checkpoint.architecture, str(trunk)))
        return build_model_dir(checkpoint, config, output=folder)


@pytest.fixture(scope="module")
def results(folders: TinyFolders, tiny: TinyFactory, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Every model from its original and from its GGUF; one from two files; one with its draft in the wrong place."""
    keys = [f"{name} {kind}" for name in NAMES for kind in ("original", "gguf")]
    jobs = [job(folders, name, ours=ours) for name in NAMES for ours in (False, True)]
    apart = two_files(tiny, tmp_path_factory.mktemp("apart") / "folder")
    jobs.append({**job(folders, IN_PARALLEL, ours=True), "model": str(apart)})
    jobs.append(job(folders, "glm46_echo", ours=True, misroute=True))
    answer = harness.run_worker("mtp_worker", {"jobs": jobs}, VLLM_LOGGING_LEVEL="INFO")
    return dict(zip([*keys, "apart", "misrouted"], answer["results"], strict=True)) | {"log": {"text": answer["log"]}}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens_and_the_same_acceptance(
    results: Results, name: str, record_property: Callable[..., None]
) -> None:
    original, ours = results[f"{name} original"], results[f"{name} gguf"]
    assert [len(tokens) for tokens in ours["tokens"]] == [TOKENS] * PROMPTS
    assert ours["tokens"] == original["tokens"]
    assert (ours["drafted"], ours["accepted"]) == (original["drafted"], original["accepted"])
    record_property("acceptance", ours["accepted"] / ours["drafted"])
    print(f"{name}: {ours['accepted']} of {ours['drafted']} draft tokens accepted")


@pytest.mark.parametrize("family", DTYPES)
def test_a_draft_with_its_own_weights_is_believed(results: Results, family: str) -> None:
    found = results[f"{family}_echo gguf"]
    assert found["drafted"] >= PROMPTS * TOKENS // 2 - PROMPTS
    assert found["accepted"] >= 0.95 * found["drafted"]
    assert len({token for tokens in found["tokens"] for token in tokens}) >= 20, "too uniform to prove anything"


@pytest.mark.parametrize("family", DTYPES)
def test_a_draft_that_is_only_near_is_believed_in_part(results: Results, family: str) -> None:
    """Otherwise equal acceptance would say little."""
    found = results[f"{family}_near gguf"]
    assert 0.1 * found["drafted"] < found["accepted"] < 0.9 * found["drafted"]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_file_does_not_carry_is_shared_and_never_allocated(results: Results, name: str) -> None:
    original, ours = results[f"{name} original"], results[f"{name} gguf"]
    head = "model.layers.3.shared_head.head"
    size = tiny_moe.SPECS[name].text["vocab_size"] * tiny_moe.HIDDEN * (4 if dtype_of(name) == "float32" else 2)
    assert ours["deferred"] == {"model.embed_tokens": size, head: size}
    assert ours["shared"] == original["shared"] == ["model.embed_tokens is model.embed_tokens", f"{head} is lm_head"]
    assert ours["draft_bytes"] == original["draft_bytes"] > 0
    assert not original["deferred"]


def test_a_draft_in_a_file_of_its_own_drafts_the_same(results: Results) -> None:
    together, apart = results[f"{IN_PARALLEL} gguf"], results["apart"]
    for key in ("tokens", "drafted", "accepted", "shared", "deferred", "draft_bytes"):
        assert apart[key] == together[key], key


def test_the_log_says_what_is_shared_and_what_is_read(results: Results) -> None:
    lines = [line for line in results["log"]["text"].splitlines() if "ggufmap: " in line]
    for module in ("model.embed_tokens", "model.layers.3.shared_head.head"):
        assert sum(f"the draft's {module} is not in the file: shared with the target" in x for x in lines) >= len(NAMES)
    assert sum("ggufmap: 23 tensors" in x and "17 draft parameters" in x for x in lines) == 3  # glm46: draft's own only
    assert sum("ggufmap: 55 tensors" in x and "38 target parameters" in x for x in lines) >= 2


def test_a_misrouted_draft_does_not_start(results: Results) -> None:
    """Its tensors are offered to the target, which ignores them without a word; the draft is left unfilled."""
    found = results["misrouted"]
    assert found["type"] == "MappingError"
    assert "parameters incomplete" in found["error"] and "nothing is written" in found["error"]


def test_two_ranks_give_the_tokens_of_one(folders: TinyFolders, results: Results) -> None:
    """Target and draft are cut between two processes, each of which reads its own part of the file."""
    jobs = [job(folders, IN_PARALLEL, ours=True, tensor_parallel=2)]
    (found,) = harness.run_worker("mtp_worker", {"jobs": jobs}, VLLM_CPU_OMP_THREADS_BIND="0|1")["results"]
    one = results[f"{IN_PARALLEL} gguf"]
    assert found["tokens"] == one["tokens"]
    assert (found["drafted"], found["accepted"]) == (one["drafted"], one["accepted"])
