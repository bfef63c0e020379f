"""The storage plan in the reports: packed and dense layers, reasons, bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from support import small_models as small
from support.report_schema import check_report

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Plan, Role, resolve
from ggufmap.mapping.plan import StorageGroup, StoragePlan
from ggufmap.report.as_json import plan_report
from ggufmap.report.console import print_plan


def plan(tmp_path: Path) -> Plan:
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        return resolve(checkpoint, find_architecture("llama", "x"))


def group(module: str, tensors: tuple[str, ...], reason: str) -> StorageGroup:
    packed = not reason
    return StorageGroup(Role.TARGET, module, tensors, ("Q4_K",), packed, reason, 1_000 if packed else 4_000, 4_000)


STORAGE = StoragePlan(
    "auto",
    (
        group("model.layers.0.mlp.down_proj", ("blk.0.ffn_down.weight",), ""),
        group("model.layers.1.mlp.down_proj", ("blk.1.ffn_down.weight",), ""),
        group("lm_head", ("output.weight",), "no kernel for Q4_K"),
    ),
)


def shown(plan: Plan) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        print_plan(console, plan, config_source="header", assumed={})
    return capture.get()


def test_the_console_has_a_line_per_pattern(tmp_path: Path) -> None:
    """Case G4: what dense would cost stands beside what packed does."""
    lines = [line.strip() for line in shown(replace(plan(tmp_path), storage=STORAGE)).splitlines()]
    assert "storage   2 layers packed: 2 kB in place of 8 kB per rank" in lines
    assert "2 x model.layers.*.mlp.down_proj  Q4_K, 2 kB  packed" in lines
    assert "1 x lm_head  Q4_K, 4 kB  dense: no kernel for Q4_K" in lines


def test_a_reason_for_everything_is_said_once(tmp_path: Path) -> None:
    storage = StoragePlan("auto", (), "no packed kernels for the platform cpu")
    assert "storage   dense: no packed kernels for the platform cpu" in shown(replace(plan(tmp_path), storage=storage))
    assert "storage  " not in shown(plan(tmp_path)).replace("transform", "").split("\n", 6)[-1]


def test_json_has_it_all(tmp_path: Path) -> None:
    found = plan_report(replace(plan(tmp_path), storage=STORAGE), config_source="header", assumed={})
    found["summary"]["parameters"] = None
    check_report(found)
    assert [(x["layer"], x["storage"], x["bytes_per_rank"]) for x in found["storage"]["groups"]] == [
        ("model.layers.0.mlp.down_proj", "packed", 1_000),
        ("model.layers.1.mlp.down_proj", "packed", 1_000),
        ("lm_head", "dense", 4_000),
    ]
    held = {x["tensor"]: x["storage"] for x in found["assignments"]}
    assert held["blk.0.ffn_down.weight"] == "packed" and held["output.weight"] == "dense"
