"""What goes wrong between the audit and the load ends in an error that names it, never in a model of garbage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine import harness
from support.converter import TinyFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

Results = dict[str, dict[str, Any]]

FAULTS: dict[str, dict[str, Any]] = {
    "part forgotten": {"forget": ["blk.1.attn_k.weight"]},
    "whole forgotten": {"forget": ["blk.2.ffn_norm.weight"]},
    "embedding forgotten": {"forget": ["token_embd.weight"]},
    "doubled": {"double": ["blk.0.ffn_up.weight"]},
}


@pytest.fixture(scope="module")
def results(tiny: TinyFactory, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All engines in one process; the last one shows that those before left nothing behind."""
    root = tmp_path_factory.mktemp("faults")
    _, gguf = tiny("llama")
    whole = harness.model_dir(gguf, root / "whole")
    jobs = {name: harness.job(whole, "ggufmap", may_fail=True, **fault) for name, fault in FAULTS.items()}
    other = tiny("llama_wide")[1]
    spoilers: dict[str, Callable[[Path], object]] = {
        "replaced": lambda file: shutil.copyfile(other, file),
        "truncated": lambda file: os.truncate(file, file.stat().st_size - 1000),
        "deleted": lambda file: file.unlink(),
    }
    for name, spoil in spoilers.items():
        copy = root / f"{name}.gguf"
        shutil.copyfile(gguf, copy)
        jobs[name] = harness.job(harness.model_dir(copy, root / name), "ggufmap", may_fail=True)
        spoil(copy)
    bare = root / "bare"
    shutil.copytree(whole, bare)
    (bare / "ggufmap.json").unlink()
    jobs["no manifest"] = harness.job(bare, "ggufmap", may_fail=True)
    jobs["whole"] = harness.job(whole, "ggufmap")
    answers = harness.run_worker("vllm_worker", {"jobs": list(jobs.values())})["results"]
    return dict(zip(jobs, answers, strict=True))


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("part forgotten", "MappingError", ["1 of ", "model.layers.1.self_attn.qkv_proj.weight", "not written"]),
        ("whole forgotten", "MappingError", ["model.layers.2.post_attention_layernorm.weight", "nothing is written"]),
        ("embedding forgotten", "MappingError", ["model.embed_tokens.weight", "nothing is written"]),
        ("doubled", "MappingError", ["model.layers.0.mlp.gate_up_proj.weight", "more than once"]),
        ("replaced", "FileError", ["replaced.gguf", "header", "ggufmap serve"]),
        ("truncated", "FileError", ["truncated.gguf"]),
        ("deleted", "FileError", ["deleted.gguf"]),
        ("no manifest", "FileError", ["bare", "ggufmap.json", "ggufmap config"]),
    ],
)
def test_error_names_the_fault(results: Results, fault: str, kind: str, words: list[str]) -> None:
    result = results[fault]
    assert result.get("type") == kind, result
    missing = [word for word in words if word not in result["error"]]
    assert not missing, result["error"]


def test_a_good_load_after_the_bad_ones(results: Results) -> None:
    assert [len(tokens) for tokens in results["whole"]["tokens"]] == [16, 16, 16]
