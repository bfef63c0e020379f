"""The report as the page takes it: grouped problems, facts, the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import small_models as small
from support.page_runs import unpack_names
from support.reports import Report, hostile_report, offline_report

from ggufmap.report.page_data import page_data, verdict

NO_ROW = "no row for blk.{bid}.odd.weight (nearest: blk.{bid}.ffn_norm.weight)"


@pytest.fixture
def bad_report(tmp_path: Path) -> Report:
    tensors = small.without(small.llama_tensors(4), "blk.1.attn_k.weight", "blk.2.attn_k.weight", "output_norm.weight")
    tensors += [small.tensor(f"blk.{i}.odd.weight", 4) for i in range(3)]
    return offline_report(small.write_llama(tmp_path / "m.gguf", small.llama_metadata(4), tensors))


def test_problems_are_grouped_by_reason_missing_first(bad_report: Report) -> None:
    found = page_data(bad_report)["problems"]
    assert [(x["kind"], x["names"], x["cause"]) for x in found] == [
        (
            "missing",
            ["model.layers.1.self_attn.k_proj.weight", "model.layers.2.self_attn.k_proj.weight"],
            "blk.*.attn_k.weight is not in the file",
        ),
        ("missing", ["model.norm.weight"], "output_norm.weight is not in the file"),
        (
            "unmapped",
            [f"blk.{i}.odd.weight" for i in range(3)],
            "no row for blk.{bid}.odd.weight (nearest: blk.{bid}.ffn_norm.weight)",
        ),
    ]
    assert all(x["remedy"] for x in found)


def test_the_verdict_in_a_sentence(bad_report: Report, tmp_path: Path) -> None:
    assert verdict(bad_report) == "6 problems: this file is not served."
    good = offline_report(small.write_llama(tmp_path / "good.gguf"))
    assert verdict(good) == "Every tensor has its place by the rows. Not traced through vLLM."
    good["summary"].update(parameters=5, parameters_complete=5)
    assert verdict(good) == "5 of 5 vLLM parameters are filled, every element once."
    assert "inferred" in verdict({**good, "inferred": {"basis": "x", "rows": ""}})


def test_every_tensor_is_in_the_table_once_problems_first(bad_report: Report) -> None:
    data = page_data(bad_report)
    names = [tensor[0] for tensor in data["tensors"]]
    assert len(names) == len(set(names)) == bad_report["model"]["tensors"]
    assert names[:3] == [f"blk.{i}.odd.weight" for i in range(3)]
    checkpoint = {tensor[0]: unpack_names(tensor[11]) for tensor in data["tensors"]}
    assert all(checkpoint[entry["tensor"]] == entry["checkpoint"] for entry in bad_report["assignments"])
    assert sum(tensor[3] for tensor in data["tensors"]) == sum(
        entry["bytes"] for kind in ("assignments", "unmapped") for entry in bad_report[kind]
    )


def test_facts_of_the_header(tmp_path: Path) -> None:
    facts = dict(page_data(offline_report(small.write_llama(tmp_path / "m.gguf")))["facts"])
    assert facts == {
        "Architecture": "llama",
        "Size": facts["Size"],
        "Tensors": "21",
        "Blocks": "2",
        "Context": "128 tokens",
        "vLLM": "not asked",
        "Model class": "LlamaForCausalLM",
        "Config": "from the header",
    }


def test_whatever_the_names_are_it_is_json(bad_report: Report) -> None:
    data = page_data(hostile_report(bad_report))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
