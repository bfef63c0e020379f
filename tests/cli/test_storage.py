"""`--storage`: what a CPU answers, and how it goes with vLLM's own quantisation."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.converter import TinyFactory
from support.report_schema import check_report

from ggufmap.cli.options import Choice
from ggufmap.mapping.storage import Storage

from .conftest import Cli


def test_the_option_and_the_plan_have_the_same_words() -> None:
    assert [choice.value for choice in Choice] == [storage.value for storage in Storage]


@pytest.mark.parametrize(("asked", "note"), [("auto", "not traced"), ("dense", "asked for")])
def test_without_a_trace_everything_is_dense(cli: Cli, model: Path, asked: str, note: str) -> None:
    found = cli("audit", model, "--offline", "--storage", asked, "--json")
    check_report(found.json)
    assert found.code == 0 and found.json["storage"] == {"asked": asked, "note": note, "groups": []}


def test_packed_needs_a_trace(cli: Cli, model: Path) -> None:
    found = cli("audit", model, "--offline", "--storage", "packed")
    assert found.code == 2 and "--storage packed needs a trace" in found.err


def test_a_cpu_has_no_packed_kernels(cli: Cli, tiny: TinyFactory) -> None:
    """auto is dense, with the reason; packed is an error of the environment."""
    _, path = tiny("qwen3", outtype="q8_0")
    found = cli("audit", path, "--json")
    check_report(found.json)
    assert found.code == 0
    assert found.json["storage"]["note"] == "no packed kernels for the platform cpu"
    found = cli("audit", path, "--storage", "packed")
    assert found.code == 3 and found.out == ""
    assert "nothing can be packed: no packed kernels for the platform cpu" in found.err


def test_vllms_own_quantisation_takes_dense_weights(cli: Cli, tiny: TinyFactory) -> None:
    _, path = tiny("qwen3")
    found = cli("serve", path, "--dry-run", "--", "--quantization", "fp8")
    assert found.code == 0 and "--quantization fp8" in found.out
    found = cli("serve", path, "--dry-run", "--storage", "packed", "--", "--quantization", "fp8")
    assert found.code == 2 and "vLLM quantises dense weights at load (--quantization fp8)" in found.err
