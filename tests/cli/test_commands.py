"""The commands on files without a fault: what they print, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.converter import TinyFactory
from support.report_schema import ASSIGNMENT, check_report

from .conftest import Cli


def test_audit_of_a_good_file(cli: Cli, model: Path) -> None:
    found = cli("audit", model, "--offline")
    assert (found.code, found.err) == (0, "")
    assert "ok: every tensor has its place by the rows" in found.out
    assert f"serve it: ggufmap serve {model}" in found.out


def test_the_command_to_serve_loads_it_as_it_was_audited(cli: Cli, model: Path) -> None:
    for command in ("audit", "check"):
        found = cli(command, model, "--offline", "--storage", "dense")
        assert f"serve it: ggufmap serve {model} --storage dense\n" in found.out
        as_json = ("--json",) if command == "audit" else ("--format", "json")
        found = cli(command, model, "--offline", "--storage", "dense", *as_json)
        assert found.json["serve"] == f"ggufmap serve {model} --storage dense"


def test_audit_as_json_is_schema_1_and_nothing_else(cli: Cli, model: Path) -> None:
    found = cli("audit", model, "--offline", "--json")
    assert (found.code, found.err) == (0, "")
    check_report(found.json)
    assert found.json["ok"] is True
    assert found.json["model"]["path"] == str(model)
    assert found.json["target"]["traced"] is False


def test_audit_as_json_of_a_bad_file(cli: Cli, tmp_path: Path) -> None:
    tensors = [
        *small.without(small.llama_tensors(), "output_norm.weight"),
        small.tensor("blk.0.ffn_gate_exps.weight", 4),
    ]
    found = cli("audit", small.write_llama(tmp_path / "m.gguf", tensors=tensors), "--offline", "--json")
    assert (found.code, found.err) == (1, "")
    check_report(found.json)
    assert found.json["ok"] is False
    assert [x["parameter"] for x in found.json["missing"]] == ["model.norm.weight"]
    assert "mixture-of-experts" in found.json["unmapped"][0]["reason"]


def test_audit_of_a_folder_and_of_any_split(cli: Cli, tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path / "set", [small.llama_tensors()[:9], small.llama_tensors()[9:]])
    for given in (*paths, tmp_path / "set"):
        report = cli("audit", given, "--offline", "--json").json
        check_report(report)
        assert (report["ok"], report["model"]["splits"]) == (True, 2)
        assert report["model"]["path"] == str(paths[0])


def test_audit_traced_by_vllm(cli: Cli, tiny: TinyFactory) -> None:
    """The whole way, through the real model class."""
    _, path = tiny("qwen3")
    found = cli("audit", path, "--json")
    assert found.code == 0
    assert "Asking vLLM" in found.err
    report = found.json
    check_report(report)
    assert report["target"]["traced"] is True
    assert report["target"]["device"] == "cpu"
    assert report["target"]["model_class"].endswith("Qwen3ForCausalLM")
    assert report["summary"]["parameters"] == report["summary"]["parameters_complete"] > 20
    by_tensor = {x["tensor"]: x for x in report["assignments"]}
    shards = {
        x: [(p["name"], p["shard"]) for p in by_tensor[f"blk.2.{x}.weight"]["parameters"]]
        for x in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up", "ffn_down")
    }
    layer = "model.layers.2"
    assert shards == {
        "attn_q": [(f"{layer}.self_attn.qkv_proj.weight", "q")],
        "attn_k": [(f"{layer}.self_attn.qkv_proj.weight", "k")],
        "attn_v": [(f"{layer}.self_attn.qkv_proj.weight", "v")],
        "ffn_gate": [(f"{layer}.mlp.gate_up_proj.weight", 0)],
        "ffn_up": [(f"{layer}.mlp.gate_up_proj.weight", 1)],
        "ffn_down": [(f"{layer}.mlp.down_proj.weight", None)],
    }


def test_config_given_and_conflicts_are_shown(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"num_key_value_heads": 1}))
    found = cli("audit", model, "--offline", "--hf-config", tmp_path / "hf")
    assert found.code == 0
    assert "W103 num_key_value_heads" in found.out
    report = cli("audit", model, "--offline", "--hf-config", tmp_path / "hf", "--json").json
    assert [x["code"] for x in report["warnings"]] == ["W103"]
    assert report["config"]["source"] == str(tmp_path / "hf" / "config.json")


def test_gaps_in_the_file_are_said(cli: Cli, tmp_path: Path) -> None:
    tensors = small.llama_tensors()
    end = sum(len(gb.tensor_bytes(x)) for x in tensors[:-1])
    last = small.tensor("output.weight", small.VOCAB, small.HIDDEN, offset=end + 64)
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*tensors[:-1], last])
    with path.open("ab") as file:
        file.write(bytes(64))
    report = cli("audit", path, "--offline", "--json").json
    assert [(x["code"], x["message"]) for x in report["warnings"]] == [
        ("W104", "64 bytes between tensors belong to none")
    ]


def test_map_lists_every_tensor(cli: Cli, model: Path) -> None:
    found = cli("map", model, "--offline")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    assert [line.split()[0] for line in lines] == [spec.name for spec in small.llama_tensors()]
    assert "blk.0.attn_q.weight  F32 64x64  ->  model.layers.0.self_attn.q_proj.weight (rope_rows:4)" in lines
    assert "blk.0.attn_v.weight  F32 32x64  ->  model.layers.0.self_attn.v_proj.weight" in lines


def test_map_as_json(cli: Cli, model: Path) -> None:
    import jsonschema

    found = cli("map", model, "--offline", "--json")
    assert (found.code, found.err) == (0, "")
    assert len(found.json) == 21
    for entry in found.json:
        jsonschema.validate(entry, ASSIGNMENT)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^blk\.1\.attn_[qk]\.", ["blk.1.attn_q.weight", "blk.1.attn_k.weight"]),
        ("lm_head", ["output.weight"]),  # a checkpoint name counts too
        ("nothing like it", []),
        ("stranger", ["stranger.weight"]),
    ],
)
def test_map_filters_by_any_name(cli: Cli, tmp_path: Path, pattern: str, expected: list[str]) -> None:
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), small.tensor("stranger.weight", 4)])
    found = cli("map", path, "--offline", "--filter", pattern)
    assert [line.split()[0] for line in found.out.splitlines()] == expected
    assert found.code == 1  # the file is what it is, whatever is listed


def test_config_writes_a_model_directory(cli: Cli, tiny: TinyFactory, tmp_path: Path) -> None:
    _, path = tiny("qwen3")
    found = cli("config", path, "-o", tmp_path / "out")
    assert found.code == 0
    assert found.out == f"{tmp_path / 'out'}\n"
    assert "assumed hidden_act = 'silu' (not in the header)" in found.err
    values = json.loads((tmp_path / "out" / "config.json").read_text())
    assert values["architectures"] == ["Qwen3ForCausalLM"]
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    again = cli("config", path, "-o", tmp_path / "out")
    assert again.code == 2
    assert "is not empty" in again.err


def test_serve_dry_run_prints_the_command(cli: Cli, tiny: TinyFactory, tmp_path: Path) -> None:
    model, path = tiny("qwen3")
    arguments = ("serve", path, "--offline", "--dry-run", "--tokenizer", model.folder, "--", "--port", "8001")
    found = cli(*arguments)
    assert found.code == 0
    words = found.out.split()
    assert found.out.count("\n") == 1
    assert words[-2:] == ["--port", "8001"]
    assert words[words.index("--load-format") + 1] == "ggufmap"
    assert words[words.index("--served-model-name") + 1] == path.stem
    folder = next(word for word in words if word.startswith(str(tmp_path / "cache" / "models")))
    assert (Path(folder) / "config.json").is_file()
    assert cli(*arguments).out == found.out


def test_serve_refuses_before_it_writes_anything(cli: Cli, tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), small.tensor("x", 4)])
    found = cli("serve", path, "--offline", "--dry-run")
    assert found.code == 1
    assert "error: not served: the mapping of" in found.err
    assert "unmapped  x" in found.out
    assert not (tmp_path / "cache").exists()


def test_version_names_everything_a_bug_report_needs(cli: Cli) -> None:
    import gguf  # noqa: F401 - the version below is of the installed one
    import torch

    from ggufmap import __version__

    found = cli("--version")
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0].startswith(f"ggufmap {__version__} (Python 3.")
    assert f"torch {torch.__version__}" in lines
    assert {line.split()[0] for line in lines} >= {"gguf", "libgguf", "tokenizers"}
    assert any(line.startswith("vllm") and "not installed" not in line for line in lines)


def test_help_names_the_exit_codes(cli: Cli) -> None:
    found = cli("audit", "--help")
    assert found.code == 0
    assert "0 clean, 1 the mapping has problems, 2 bad input or usage, 3 this" in " ".join(found.out.split())


# Without vLLM.


def test_serve_without_vllm_exits_with_3(without_vllm: Cli, model: Path) -> None:
    found = without_vllm("serve", model, "--dry-run")
    assert (found.code, found.out) == (3, "")
    assert "error: vLLM is not installed in this environment" in found.err
    assert "pip install 'ggufmap[cpu]'" in found.err


def test_audit_without_vllm_falls_back_and_says_so(without_vllm: Cli, model: Path) -> None:
    found = without_vllm("audit", model, "--json")
    assert found.code == 0
    check_report(found.json)
    assert [x["code"] for x in found.json["warnings"]] == ["W105"]
    assert "not traced" in found.json["warnings"][0]["message"]
    assert found.json["target"]["traced"] is False


def test_versions_without_vllm(without_vllm: Cli) -> None:
    found = without_vllm("--version")
    assert found.code == 0
    assert "vllm not installed" in found.out.splitlines()


def test_a_simulated_device_without_its_vllm_exits_with_3(cli: Cli, model: Path) -> None:
    from ggufmap.target.compat import has_cuda_build

    assert not has_cuda_build(), "this test is for the CPU build"
    found = cli("audit", model, "--device", "sm_100")
    assert (found.code, found.out) == (3, "")
    assert "--device sm_100 needs vLLM's CUDA build" in found.err
