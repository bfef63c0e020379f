"""The real sizes: sparse files of the generator in scripts/, hundreds of GB to look at and a few MB on disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.speed import fastest, measured, slack
from support.synthetic import generator

from ggufmap.mapping import Role
from ggufmap.serving.preflight import preflight
from ggufmap.target.stock import stock_map

MODELS = {
    # tensors, mapped, draft, skipped, phantom
    "glm-5.2": (1524, 1497, 27, 0, 81),
    "glm-5.2-extra-indexers": (1809, 1497, 27, 285, 81),
    "glm-4.5-air": (803, 780, 23, 0, 94),
    "deepseek-v3": (1108, 1086, 22, 0, 64),
    "glm-5.3-flash": (1412, 1383, 29, 0, 14),
}
# A converter's option that none of these files was made with: one phantom for each block with experts.
FUSED = "ffn_gate_up_exps"


@pytest.fixture(scope="module")
def synthesize() -> ModuleType:
    """The generator, which is a script and no package."""
    return generator()


@pytest.fixture(scope="module")
def glm5(synthesize: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM-5 in ten splits; the first."""
    return Path(synthesize.write(synthesize.MODELS["glm-5"](), tmp_path_factory.mktemp("glm5"), 10)[0])


@dataclass(frozen=True)
class Audit:
    """What one run of `ggufmap audit --json` said, as a process, and its peak memory."""

    report: dict[str, Any]
    rss_mb: float


def audited(path: Path, *options: str) -> tuple[float, Audit]:
    """Seconds of a run, and what it said."""
    found = measured([sys.executable, "-m", "ggufmap.cli.main", "audit", str(path), "--json", *options])
    return found.seconds(), Audit(json.loads(found.stdout), found.rss_mb)


def counts(report: dict[str, Any]) -> tuple[int, ...]:
    summary = report["summary"]
    phantoms = sum(FUSED not in entry["tensor"] for entry in report["phantom"])
    return (*(summary[key] for key in ("tensors", "mapped", "draft", "skipped")), phantoms)


def problems(summary: dict[str, Any]) -> tuple[int, ...]:
    return tuple(summary[key] for key in ("unmapped", "missing", "mismatched"))


def test_glm_5_is_402_gb_and_a_few_mb(glm5: Path) -> None:
    files = sorted(glm5.parent.iterdir())
    assert len(files) == 10
    assert sum(file.stat().st_size for file in files) == pytest.approx(402e9 * 1.074, rel=0.01)  # 402 GiB
    assert sum(file.stat().st_blocks * 512 for file in files) < 10e6


def test_glm_5_audits_clean_by_the_rows_in_a_second(glm5: Path, record_property: Callable[..., None]) -> None:
    limit = 1.5 * slack()
    seconds, audit = fastest(lambda: audited(glm5, "--offline"), limit)
    report, summary = audit.report, audit.report["summary"]
    assert counts(report) == (1809, 1782, 27, 0, 81)
    assert problems(summary) == (0, 0, 0)
    assert (report["model"]["splits"], report["model"]["draft_blocks"]) == (10, 1)
    record_property("seconds", seconds)
    record_property("rss_mb", audit.rss_mb)
    print(f"GLM-5 offline: {seconds:.2f} s, {audit.rss_mb:.0f} MB")
    assert seconds < limit
    assert audit.rss_mb < 200


def test_glm_5_fills_every_parameter_of_vllm(glm5: Path, record_property: Callable[..., None]) -> None:
    limit = 20 * slack()
    seconds, audit = fastest(lambda: audited(glm5), limit)
    report, summary = audit.report, audit.report["summary"]
    assert counts(report) == (1809, 1782, 27, 0, 81)
    assert problems(summary) == (0, 0, 0)
    assert summary["parameters"] == summary["parameters_complete"] == 1395 + 22
    target = report["target"]
    assert target["model_class"].endswith(".GlmMoeDsaForCausalLM") and target["draft_class"].endswith(".DeepSeekMTP")
    assert target["draft_flags"] == {"index_share_for_mtp_iteration": True}
    assert target["deferred"] == dict.fromkeys(
        ("model.embed_tokens", "model.layers.78.shared_head.head"), 154880 * 6144 * 2
    )
    draft = {entry["tensor"] for entry in report["assignments"] if entry["role"] == "draft"}
    assert len(draft) == 27 and all(tensor.startswith("blk.78.") for tensor in draft)
    record_property("seconds", seconds)
    print(f"GLM-5 traced: {seconds:.1f} s")
    assert seconds < limit


def test_gguf_py_s_own_map_loses_the_draft(glm5: Path) -> None:
    found = preflight(glm5, offline=True)
    with found.checkpoint:
        stock = stock_map(found.plan, found.config.values)
    assert len(stock.unmapped) == 27
    assert all(name.startswith("blk.78.") for name in stock.unmapped)
    assert len(stock.phantom) == 153


@pytest.mark.parametrize("name", MODELS)
def test_the_sibling_audits_clean_by_the_rows(synthesize: ModuleType, tmp_path: Path, name: str) -> None:
    path = synthesize.write(synthesize.MODELS[name](), tmp_path)[0]
    found = preflight(path, offline=True)
    found.checkpoint.close()
    plan = found.plan
    assert plan.ok, plan.problems()
    roles = [a.role.value for a in plan.assignments for _ in a.tensors]
    found_counts = (len(plan.model.tensors), roles.count("target"), roles.count("draft"), len(plan.skipped))
    assert (*found_counts, sum(FUSED not in x.tensor for x in plan.phantom)) == MODELS[name]
    last = max(int(tensor.split(".")[1]) for tensor in plan.model.tensors if tensor.startswith("blk."))
    draft = {tensor for a in plan.assignments if a.role is Role.DRAFT for tensor in a.tensors}
    assert draft == {tensor for tensor in plan.model.tensors if tensor.startswith(f"blk.{last}.")}
    assert [w.code for w in plan.warnings] == []
