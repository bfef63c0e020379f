"""Packed layers at work: the plugin's own layer classes in vLLM, its kernels replaced by CPU ones (`packed_ops`).

Each file is audited, loaded by the load format packed and dense, at TP 1 and 2 (real ranks), and every packed layer is
compared with the dense one: its blocks decode to the same values, its output is the same to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import libgguf
import numpy as np
import pytest
from support import conformance, gguf_edit, packed_ops
from support.conformance import Case
from support.gguf_edit import Stored
from support.packed_vllm import PackedVllm

from ggufmap.mapping.memory import model_bytes
from ggufmap.mapping.plan import Plan
from ggufmap.mapping.storage import Storage
from ggufmap.modeldir.build import build_model_dir
from ggufmap.serving.preflight import preflight
from ggufmap.serving.serve import packed_manifest
from ggufmap.target.devices import World

pytestmark = pytest.mark.timeout(1800)

PACKED = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS")
TYPES = (*PACKED, "MXFP4")
ROUNDING = 1e-5
# Wide enough that two ranks cut rows of 256-value blocks on their edges.
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024}
EXPERTS = {"head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
# Layer by layer: one type each, then the mixtures of case C7.
LLAMA_MIXES: tuple[dict[str, str], ...] = (
    {"attn_q": "Q8_0", "attn_k": "Q4_0", "attn_v": "F16", "ffn_gate": "IQ4_XS", "ffn_up": "Q4_K", "ffn_down": "Q5_K"},
    {"attn_q": "Q4_K", "attn_k": "Q8_0", "attn_v": "Q6_K", "ffn_gate": "Q4_K", "ffn_up": "MXFP4", "ffn_down": "Q4_K"},
)
MOE_MIXES: tuple[dict[str, str], ...] = (
    {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q4_K", "ffn_down_exps": "Q6_K"},
    {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "IQ4_XS", "ffn_down_exps": "Q4_K"},
)
Choice = Callable[[int, str], str]


def by_layer(mixes: tuple[dict[str, str], ...], embedding: str, head: str) -> Choice:
    """Layer number and module (`attn_q`) -> type."""

    def choose(layer: int, module: str) -> str:
        if layer < 0:
            return embedding if module == "token_embd" else head
        return TYPES[layer] if layer < len(TYPES) else mixes[layer - len(TYPES)].get(module, "Q8_0")

    return choose


def quantised(source: Path, out: Path, choose: Choice) -> Path:
    """A copy of an F32 file with its matrices in the types that `choose` names."""
    file = gguf_edit.read(source)
    for name, tensor in file.tensors.items():
        parts = name.split(".")
        layer, module = (int(parts[1]), parts[2]) if parts[0] == "blk" else (-1, parts[0])
        if len(tensor.shape) > 1 and "norm" not in name and module != "ffn_gate_inp":
            file.tensors[name] = _stored(tensor.values, gguf.GGMLQuantizationType[choose(layer, module)])
    return file.write(out)


def _stored(values: Any, kind: gguf.GGMLQuantizationType) -> Stored:
    if kind is gguf.GGMLQuantizationType.F16:
        return Stored(kind, values.shape, values.astype(np.float16).tobytes())
    return Stored(kind, values.shape, libgguf.quantize_rows(values.reshape(-1, values.shape[-1]), int(kind)).tobytes())


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
        "llama": Case("llama", "LlamaForCausalLM", {**SIZES, "num_hidden_layers": layers}, tokenizer="llama3"),
        "moe": Case("moe", "Qwen3MoeForCausalLM", {**SIZES, **EXPERTS, "num_hidden_layers": layers}),
        "small": Case("small", "LlamaForCausalLM", {**SIZES, "num_hidden_layers": 1}, tokenizer="llama3"),
    }
    choices = {
        "llama": by_layer(LLAMA_MIXES, "Q4_0", "Q8_0"),
        "moe": by_layer(MOE_MIXES, "Q4_K", "Q6_K"),
        **{type: by_layer((), type, type) for type in TYPES},
    }
    sources: dict[str, Path] = {}
    done: dict[tuple[str, int], Found] = {}

    def found(name: str, ranks: int) -> Found:
        if (name, ranks) not in done:
            case = name if name in cases else "small"
            if case not in sources:
                sources[case] = conformance.make(cases[case], root).gguf
            path = root / f"{name}.gguf"
            if not path.exists():
                quantised(sources[case], path, choices[name])
            done[name, ranks] = _run(vllm, path, ranks, root)
        return done[name, ranks]

    return found


def _run(vllm: PackedVllm, path: Path, ranks: int, root: Path) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGUFMAP_CACHE", str(root / "cache"))
        with vllm.answering():
            found = preflight(path, storage=Storage.AUTO, world=World("", ranks, False))
        with found.checkpoint:
            dense = build_model_dir(found.checkpoint, found.config)
            packed = build_model_dir(found.checkpoint, found.config, packed=packed_manifest(found.plan))
    answer = vllm.ask("layers", {"packed": str(packed), "dense": str(dense), "ranks": ranks})
    return Found(found.plan, [{layer["path"]: layer for layer in rank} for rank in answer])


@pytest.mark.parametrize("ranks", [1, 2])
def test_linear_layers_of_every_type_and_mixture(run: Runner, ranks: int) -> None:
    found = run("llama", ranks)
    found.check()
    for layer, type in enumerate(TYPES):
        for module in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
            reason = "no kernel for MXFP4" if type == "MXFP4" else ""
            assert found.reason(f"model.layers.{layer}.{module}") == reason
    mixed, other = (f"model.layers.{len(TYPES) + index}" for index in range(2))
    assert found.reason(f"{mixed}.self_attn.qkv_proj") == "F16 beside Q8_0, Q4_0: a layer is packed as a whole"
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
