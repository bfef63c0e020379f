"""Known families under another name: what is inferred of them, with vLLM, must be what their rows say."""

from __future__ import annotations

from pathlib import Path

import pytest
from families.tracing import Tracer
from support import conformance, gguf_edit
from support.gguf_bytes import STRING

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import MappingError, UsageError
from ggufmap.mapping import Plan, resolve
from ggufmap.modeldir.build import build_model_dir
from ggufmap.serving.loader import _open
from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.serving.serve import check_gate
from ggufmap.target import client


def renamed(path: Path, out: Path, name: str) -> Path:
    """A copy whose family nobody knows."""
    file = gguf_edit.read(path)
    prefix = f"{file.architecture}."
    keys = {(f"{name}.{k.removeprefix(prefix)}" if k.startswith(prefix) else k): v for k, v in file.metadata.items()}
    file.metadata = {**keys, "general.architecture": (STRING, name)}
    return file.write(out)


def inferring(tracer: Tracer, path: Path, model_class: str | None = None) -> Preflight:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_ask", lambda request, environment: tracer.ask("trace", request))
        found = preflight(path, infer_unknown=True, model_class=model_class)
    found.checkpoint.close()
    return found


def rows(plan: Plan) -> dict[str, tuple[tuple[str, ...], str]]:
    return {name: (a.checkpoint, str(a.transform)) for a in plan.assignments for name in a.tensors}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inferred")


def known(path: Path) -> Plan:
    with open_checkpoint(path) as checkpoint:
        return resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))


@pytest.mark.parametrize(
    ("case", "name"), [("qwen3", "qwen-3"), ("olmo2", "olmo_2"), ("qwen3moe", "Qwen3Moe"), ("phi3", "phi_3")]
)
def test_a_family_of_plain_tensors_is_inferred_whole(tracer: Tracer, root: Path, case: str, name: str) -> None:
    path = conformance.make(conformance.all_cases()[case], root).gguf
    found = inferring(tracer, renamed(path, root / f"{name}.gguf", name))
    plan = found.plan
    assert rows(plan) == rows(known(path))
    assert plan.problems() == [] and plan.inferred is not None and not plan.ok
    assert plan.trace is not None and all(p.complete for p in plan.trace.target.parameters.values())
    assert f"'s {found.architecture.model_class} takes" in plan.inferred.basis
    with pytest.raises(MappingError, match=r"not served: the rows of '.*' are inferred"):
        check_gate(found, [], force=False)
    assert len(check_gate(found, [], force=True)) == 1


def test_a_change_of_values_does_not_show(tracer: Tracer, root: Path) -> None:
    """Gemma's norms are stored plus one: the names are right, and the audit does not call it ok."""
    path = conformance.make(conformance.all_cases()["gemma2"], root).gguf
    plan = inferring(tracer, renamed(path, root / "gemma.gguf", "gemma-2")).plan
    right, found = rows(known(path)), rows(plan)
    assert {name: names for name, (names, _) in found.items()} == {name: names for name, (names, _) in right.items()}
    assert {name for name in right if right[name] != found[name]} == {name for name in right if "norm" in name}
    assert plan.problems() == [] and not plan.ok


def test_the_class_may_be_named(tracer: Tracer, root: Path) -> None:
    path = renamed(conformance.make(conformance.all_cases()["qwen3"], root).gguf, root / "new.gguf", "newcomer")
    with pytest.raises(UsageError, match="has no model class like 'newcomer'") as e:
        inferring(tracer, path)
    assert e.value.hint is not None and "--model-class NAME" in e.value.hint
    with pytest.raises(UsageError, match=r"no model class like 'Qwen3xForCausalLM' \(nearest: .*Qwen3ForCausalLM"):
        inferring(tracer, path, "Qwen3xForCausalLM")
    found = inferring(tracer, path, "Qwen3ForCausalLM")
    assert found.plan.problems() == []
    assert (found.config.values["architectures"], found.config.values["model_type"]) == (["Qwen3ForCausalLM"], "qwen3")


def test_forced_rows_reach_the_loader(
    tracer: Tracer, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))
    path = renamed(conformance.make(conformance.all_cases()["qwen3moe"], root).gguf, root / "moe.gguf", "qwen3-moe")
    found = inferring(tracer, path)
    with open_checkpoint(path) as checkpoint:
        folder = build_model_dir(checkpoint, found.config, rows=found.architecture.rules)
    checkpoint, plan = _open(folder)
    checkpoint.close()
    assert plan.ok and rows(plan) == rows(found.plan)
