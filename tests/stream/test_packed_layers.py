"""Packed layers at work: the plugin's own layer classes in vLLM, its kernels replaced by CPU ones (`packed_ops`).

Each file is audited, loaded by the load format packed and dense, at TP 1 and 2 (real ranks), and every packed layer is
compared with the dense one: its blocks decode to the same values, its output is the same to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import conformance, packed_models, packed_ops
from support.packed_models import LLAMA_MIXES, MOE_MIXES, TYPES, by_layer, quantised
from support.packed_vllm import PackedVllm

from ggufmap.mapping.memory import model_bytes
from ggufmap.mapping.plan import Plan

pytestmark = pytest.mark.timeout(1800)

ROUNDING = 1e-5


@dataclass(frozen=True)
class Found:
    """The plan of a file, and what each rank found of each packed layer."""

    plan: Plan
    ranks: list[dict[str, dict[str, Any]]]

    def reason(self, layer: str) -> str | None:
        """Why a layer is dense; empty when it is packed, None when it has no quantised tensor."""
        assert self.plan.storage is not None
        return next((group.reason for group in self.plan.storage.groups if group.module == layer), None)

    def check(self) -> None:
        """What is packed by the plan is packed in the model, and equal to the dense layer there, on every rank."""
        assert self.plan.ok and self.plan.storage is not None
        packed = {group.module for group in self.plan.storage.groups if group.packed}
        for rank in self.ranks:
            assert set(rank) == packed
            assert {path for path, layer in rank.items() if not layer["exact"]} == set()
            assert {path: layer["error"] for path, layer in rank.items() if layer["error"] > ROUNDING} == {}


Runner = Callable[[str, int], Found]


@pytest.fixture(scope="module")
def vllm() -> Iterator[PackedVllm]:
    packed_ops.fetch()
    found = PackedVllm()
    yield found
    found.close()


@pytest.fixture(scope="module")
def run(vllm: PackedVllm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """`run(file, ranks)`: each once."""
    root = tmp_path_factory.mktemp("packed")
    layers = len(TYPES) + 2
    cases = {
        "llama": packed_models.llama(layers),
        "moe": packed_models.moe(layers),
        "corrected": packed_models.corrected(),
        "small": packed_models.llama(1),
    }
    choices = {
        "llama": by_layer(LLAMA_MIXES, "Q4_0", "Q8_0"),
        "moe": by_layer(MOE_MIXES, "Q4_K", "Q6_K"),
        "corrected": by_layer((), "Q4_K", "Q6_K"),
        **{type: by_layer((), type, type) for type in TYPES},
    }
    sources: dict[str, Path] = {}
    done: dict[tuple[str, int], Found] = {}

    def found(name: str, ranks: int) -> Found:
        if (name, ranks) not in done:
            case = name if name in cases else "small"
            if case not in sources:
                sources[case] = conformance.make(cases[case], root / case).gguf
            path = root / f"{name}.gguf"
            if not path.exists():
                quantised(sources[case], path, choices[name])
            done[name, ranks] = _run(vllm, path, ranks, root)
        return done[name, ranks]

    return found


def _run(vllm: PackedVllm, path: Path, ranks: int, root: Path) -> Found:
    made = packed_models.folders(vllm, path, root / "cache", ranks)
    answer = vllm.ask("layers", {"packed": str(made.packed), "dense": str(made.dense), "ranks": ranks})
    return Found(made.plan, [{layer["path"]: layer for layer in rank} for rank in answer])


@pytest.mark.parametrize("ranks", [1, 2])
def test_linear_layers_of_every_type_and_mixture(run: Runner, ranks: int) -> None:
    found = run("llama", ranks)
    found.check()
    for layer, type in enumerate(TYPES):
        for module in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
            reason = "no kernel for MXFP4" if type == "MXFP4" else ""
            assert found.reason(f"model.layers.{layer}.{module}") == reason
    mixed, other = (f"model.layers.{len(TYPES) + index}" for index in range(2))
    assert found.reason(f"{mixed}.self_attn.qkv_proj") == "F16 beside Q4_0, Q8_0: a layer is packed as a whole"
    assert found.reason(f"{mixed}.mlp.gate_up_proj") == ""
    assert found.reason(f"{other}.self_attn.qkv_proj") == ""
    assert found.reason(f"{other}.mlp.gate_up_proj") == "no kernel for MXFP4"
    assert found.ranks[0][f"{other}.self_attn.qkv_proj"]["shape"][1] == 768 // ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_experts_of_every_type_and_mixture(run: Runner, ranks: int) -> None:
    found = run("moe", ranks)
    found.check()
    experts = [
        group
        for group in found.plan.storage.groups
        if "experts" in group.module  # type: ignore[union-attr]
    ]
    assert [group.reason for group in experts] == ["", "", "", "", "", "no kernel for MXFP4", "", experts[7].reason]
    assert experts[7].reason == "IQ4_XS, Q4_K in one w13_weight"
    assert all(len(layer["shape"]) == 2 for rank in found.ranks for layer in rank.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_correction_of_the_router_is_no_bias_of_the_experts(run: Runner, ranks: int) -> None:
    """vLLM hangs it on the layer of the experts, for kernels that also route."""
    found = run("corrected", ranks)
    found.check()
    assert found.reason("model.layers.1.mlp.experts.routed_experts") == ""
    assert found.reason("model.layers.1.mlp.shared_experts.down_proj") == ""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("type", TYPES)
def test_embeddings_and_heads_of_every_type(run: Runner, type: str, ranks: int) -> None:
    """Cases C4 and C5: MXFP4 has no kernel here; the file loads all the same, dense, and says so."""
    found = run(type, ranks)
    found.check()
    for layer in ("model.embed_tokens", "lm_head"):
        assert found.reason(layer) == ("no kernel for MXFP4" if type == "MXFP4" else "")
        assert (layer in found.ranks[0]) is (type != "MXFP4")


@pytest.mark.parametrize("name", ["llama", "moe"])
def test_the_plan_says_the_bytes_that_the_model_has(run: Runner, name: str) -> None:
    for ranks in (1, 2):
        plan = run(name, ranks).plan
        assert plan.storage is not None and plan.trace is not None
        parameters = plan.trace.target.parameters
        for group in plan.storage.groups:
            held = {n: p for n, p in parameters.items() if n.rpartition(".")[0] == group.module and len(p.shape) > 1}
            trace = type(plan.trace.target)("m.X", held, {}, {}, {}, {})
            assert model_bytes(trace) == group.nbytes, group.module
            assert (group.nbytes < group.dense_nbytes) is group.packed
