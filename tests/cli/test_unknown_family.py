"""A family without rows: audit infers some and says so, everything else refuses the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.report_schema import check_report

from .conftest import Cli


def unknown(folder: Path, name: str = "llamb") -> Path:
    metadata = {key.replace("llama.", f"{name}."): value for key, value in small.llama_metadata().items()}
    return small.write_llama(folder / "m.gguf", metadata | {"general.architecture": (gb.STRING, name)})


def test_audit_infers_rows_and_is_never_ok(cli: Cli, tmp_path: Path) -> None:
    found = cli("audit", unknown(tmp_path), "--offline")
    assert (found.code, found.err) == (1, "")
    assert "inferred: llamb has no rows of its own; these are the first alias that gguf-py" in found.out
    assert "tensors (inferred)" in found.out
    assert "the rows are inferred and no value is proven; not served without --force" in found.out
    rows = found.out.partition("rows to start from (docs/adding-an-architecture.md):\n\n")[2]
    assert 'LLAMB = Architecture(\n    names=("llamb",),' in rows


def test_the_report_of_inferred_rows_is_schema_1(cli: Cli, tmp_path: Path) -> None:
    found = cli("audit", unknown(tmp_path), "--offline", "--json", "--model-class", "LlamaForCausalLM")
    assert (found.code, found.err) == (1, "")
    check_report(found.json)
    assert found.json["ok"] is False
    assert found.json["target"]["model_class"] == "LlamaForCausalLM"
    assert found.json["summary"]["mapped"] == found.json["summary"]["tensors"] == 21
    assert found.json["inferred"]["basis"].startswith("the first alias that gguf-py ")
    assert 'model_class="LlamaForCausalLM"' in found.json["inferred"]["rows"]


def test_rows_are_written_into_a_new_file(cli: Cli, tmp_path: Path) -> None:
    path, rows = unknown(tmp_path), tmp_path / "llamb.py"
    found = cli("audit", path, "--offline", "--rows", rows)
    assert found.code == 1
    assert found.err == f"inferred rows written to {rows}\n"
    assert "rows to start from" not in found.out
    compile(rows.read_text(), str(rows), "exec")
    again = cli("audit", path, "--offline", "--rows", rows)
    assert again.code == 2
    assert f"{rows}: cannot be written: File exists" in again.err


@pytest.mark.parametrize("option", ["--rows", "--model-class"])
def test_a_known_family_has_rows_already(cli: Cli, model: Path, option: str) -> None:
    found = cli("audit", model, "--offline", option, "x")
    assert found.code == 2
    assert f"error: {option} is for families without rows, and 'llama' has its own" in found.err


@pytest.mark.parametrize("command", [["map"], ["serve", "--dry-run"]])
def test_other_commands_refuse_the_file(cli: Cli, tmp_path: Path, command: list[str]) -> None:
    found = cli(*command, "--offline", unknown(tmp_path, "qwen_3"))
    assert found.code == 2
    assert "error: " in found.err and "architecture 'qwen_3' is unknown (it is the model type of" not in found.err
    assert "architecture 'qwen_3' is unknown (nearest: qwen3)" in found.err
    assert "`ggufmap audit` infers rows for it. Known architectures: " in found.err


def test_a_model_type_is_told_from_an_architecture(cli: Cli, tmp_path: Path) -> None:
    found = cli("map", "--offline", unknown(tmp_path, "glm_moe_dsa"))
    assert "architecture 'glm_moe_dsa' is unknown (it is the model type of glm-dsa)" in found.err
