"""`ggufmap audit --html` and `--tp-sizes`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import small_models as small
from support.converter import TinyFactory
from support.report_schema import check_report

from .conftest import Cli


def test_the_page_comes_beside_the_audit(cli: Cli, model: Path, tmp_path: Path) -> None:
    plain = cli("audit", model, "--offline")
    file = tmp_path / "report.html"
    found = cli("audit", model, "--offline", "--html", file)
    assert (found.code, found.out) == (0, plain.out)
    assert f"report written to {file}" in found.err
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert str(model) in page
    assert file.stat().st_mode & 0o777 == 0o644 and [x.name for x in tmp_path.iterdir() if x.name.startswith(".")] == []


def test_the_page_comes_beside_json_and_is_written_anew(cli: Cli, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("<!DOCTYPE html>\nan old one")
    found = cli("audit", model, "--offline", "--json", "--html", file)
    check_report(found.json)
    assert found.json["serve"] == f"ggufmap serve {model}" and found.json["memory"] == []
    assert found.json["header"]["llama.block_count"] == 2
    assert "an old one" not in file.read_text(encoding="utf-8")


def test_a_file_with_problems_has_a_page_too(cli: Cli, tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf", tensors=small.without(small.llama_tensors(), "output_norm.weight"))
    found = cli("audit", path, "--offline", "--json", "--html", tmp_path / "r.html")
    assert found.code == 1 and found.json["serve"] is None
    assert "output_norm.weight is not in the file" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_model_is_never_overwritten(cli: Cli, model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    found = cli("audit", model, "--offline", "--html", model)
    assert found.code == 2 and found.out == ""
    assert "exists and is not an HTML page" in found.err
    assert model.read_bytes() == before
    for file, why in ((tmp_path, "is not a file"), (tmp_path / "no" / "r.html", "the folder does not exist")):
        found = cli("audit", model, "--offline", "--html", file)
        assert found.code == 2 and why in found.err and "--html" in found.err


@pytest.mark.parametrize("sizes", ["", "0", "x", "2,-1", "1,2,3,4,5,6,7,8,9", "9999", "\u0662"])
def test_sizes_that_are_none(cli: Cli, model: Path, sizes: str) -> None:
    found = cli("audit", model, "--tp-sizes", sizes)
    assert found.code == 2 and found.out == "" and "--tp" in found.err


def test_offline_has_no_sizes(cli: Cli, model: Path) -> None:
    found = cli("audit", model, "--offline", "--tp-sizes", "1,2")
    assert found.code == 2 and "--offline traces nothing" in found.err


def test_the_command_that_serves_says_what_the_audit_was_told(cli: Cli, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(config))
    found = cli("audit", model, "--offline", "--storage", "dense", "--hf-config", folder, "--json")
    assert found.json["serve"] == f"ggufmap serve {model} --hf-config '{folder}' --storage dense"


def test_memory_of_the_sizes_is_what_a_trace_of_each_says(cli: Cli, tiny: TinyFactory, tmp_path: Path) -> None:
    """Also a size that vLLM refuses, with its words; the size that was asked for stands in the command."""
    _, path = tiny("qwen3", outtype="q8_0")
    html = tmp_path / "r.html"
    found = cli("audit", path, "--tp", "2", "--tp-sizes", "1,2,3", "--html", html, "--json")
    check_report(found.json)
    one, two, three = found.json["memory"]
    alone = cli("audit", path, "--json").json
    assert one == alone["memory"][0] and one["target"] == alone["target"]["bytes_per_rank"]["target"]
    assert two["target"] == found.json["target"]["bytes_per_rank"]["target"] < one["target"]
    assert three["target"] is None and "divisible" in three["problem"]
    assert found.json["serve"] == f"ggufmap serve {path} -- --tensor-parallel-size 2"
    assert "Asking vLLM for one rank of 1, 3" in found.err
