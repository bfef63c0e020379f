"""The storage plan: every rule objects where it should and nowhere else; what shares a tensor shares the decision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ggufmap.mapping.plan import (
    Assignment,
    ModelFacts,
    ModelTrace,
    Module,
    Packing,
    Parameter,
    ParameterUse,
    Plan,
    Role,
    StoragePlan,
    TensorFacts,
    TraceResult,
)
from ggufmap.mapping.storage import (
    RULES,
    Storage,
    demoted,
    packed_name,
    packed_plan,
    plan_storage,
)
from ggufmap.mapping.transforms import Transform

TYPES = frozenset(("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"))
ROWS, COLUMNS = 512, 1024


@dataclass
class Made:
    """A plan and its trace, put together tensor by tensor."""

    assignments: list[Assignment] = field(default_factory=list)
    tensors: dict[str, TensorFacts] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    uses: dict[str, tuple[ParameterUse, ...]] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    packing: Packing = field(default_factory=lambda: Packing(TYPES))

    def tensor(self, name: str, type: str, layer: str, shard: Any = None, **changes: Any) -> Made:
        """A tensor that becomes one checkpoint tensor, written to a layer's weight."""
        kind = changes.get("kind", "linear")
        leaf = changes.get("leaf", "weight")
        checkpoint = changes.get("checkpoint", f"{name}.weight")
        transform = changes.get("transform", Transform("copy"))
        names = changes.get("tensors", (name,))
        for one in names:
            self.tensors[one] = TensorFacts(type, (ROWS, COLUMNS), ROWS * COLUMNS)
        self.assignments.append(Assignment(names, (checkpoint,), ((ROWS, COLUMNS),), transform, Role.TARGET))
        use = ParameterUse(f"{layer}.{leaf}", shard, columns=changes.get("columns"))
        self.uses[checkpoint] = (*self.uses.get(checkpoint, ()), use)
        shape = changes.get("shape", (ROWS, changes.get("columns") or COLUMNS))
        old = self.parameters.get(use.name)
        rows = shape[0] + (old.shape[0] if old is not None and "shape" not in changes else 0)
        self.parameters[use.name] = Parameter((rows, *shape[1:]), "bfloat16", 0)
        if changes.get("quantisable", True):
            self.modules[layer] = Module(kind, (layer,), changes.get("problem"))
        return self

    def planned(self, asked: Storage = Storage.AUTO, **world: Any) -> tuple[Plan, StoragePlan]:
        facts = ModelFacts("m.gguf", "x", "m", 1, 1, 1, 0, self.tensors)
        plan = Plan(facts, "X", tuple(self.assignments))
        model = ModelTrace("m.X", self.parameters, self.uses, {}, {}, {}, frozenset(self.rewritten), self.modules)
        return plan, plan_storage(plan, TraceResult("0", "cuda", model, packing=self.packing, **world), asked)

    def reasons(self, **world: Any) -> Mapping[str, str]:
        """Layer -> why it is dense; empty for a packed one."""
        _, storage = self.planned(**world)
        assert all(bool(group.reason) is not group.packed for group in storage.groups)
        return {group.module: group.reason for group in storage.groups}


def experts(made: Made, gate: str = "Q4_K", up: str = "Q4_K", down: str = "Q6_K", **changes: Any) -> Made:
    for shard, type, leaf in (("w1", gate, "w13_weight"), ("w3", up, "w13_weight"), ("w2", down, "w2_weight")):
        made.tensor(f"ffn_{shard}_exps", type, "mlp.experts", shard, kind="experts", leaf=leaf, **changes)
    return made


def test_a_layer_that_nothing_speaks_against_is_packed() -> None:
    plan, storage = Made().tensor("ffn_down", "Q4_K", "mlp.down_proj").planned()
    (group,) = storage.groups
    assert group.packed and group.types == ("Q4_K",) and group.tensors == ("ffn_down",)
    assert group.layers == {"mlp.down_proj": {"": "Q4_K"}}
    assert group.dense_nbytes == ROWS * COLUMNS * 2
    assert group.nbytes == ROWS * COLUMNS // 256 * 144
    made = packed_plan(plan, storage)
    assert made.assignments[0].checkpoint == ("ffn_down.qweight",)
    assert made.assignments[0].shapes == ((ROWS, COLUMNS // 256 * 144),)


def test_plain_layers_are_no_matter() -> None:
    assert Made().tensor("ffn_down", "F16", "mlp.down_proj").reasons() == {}


# Rule by rule.


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ("model.layers.0.self_attn.kv_b_proj", "MLA absorbs it"),
        ("model.layers.0.self_attn.indexer.wk", "the sparse-attention indexer"),
        ("model.layers.0.mamba.conv1d", "it is the kernel of a convolution"),
    ],
)
def test_layers_that_something_else_reads_are_dense(layer: str, reason: str) -> None:
    assert Made().tensor("x", "Q8_0", layer).reasons()[layer].startswith(reason)


def test_a_layer_without_a_quantisation_method_is_dense() -> None:
    made = Made().tensor("token_embd", "Q8_0", "model.embed_tokens", quantisable=False)
    assert made.reasons() == {"model.embed_tokens": "vLLM builds it without a quantisation method"}
    made = experts(Made(), problem="its experts have biases")
    assert made.reasons() == {"mlp.experts": "its experts have biases"}


def test_q8_0_beside_q4_0_beside_f16() -> None:
    """Case C7: one dense member makes the fused layer dense, and the reason says which."""
    made = Made().tensor("attn_q", "Q8_0", "qkv_proj", "q").tensor("attn_k", "Q4_0", "qkv_proj", "k")
    assert made.reasons() == {"qkv_proj": ""}
    made.tensor("attn_v", "F16", "qkv_proj", "v")
    assert made.reasons() == {"qkv_proj": "F16 beside Q4_0, Q8_0: a layer is packed as a whole"}


def test_mixed_types_keep_their_own_widths() -> None:
    """Case C7: gate IQ4_XS and up Q4_K, as in all 65 layers of a published file: rows as wide as the widest."""
    made = Made().tensor("ffn_gate", "IQ4_XS", "gate_up_proj", 0).tensor("ffn_up", "Q4_K", "gate_up_proj", 1)
    _, storage = made.planned()
    (group,) = storage.groups
    assert group.packed and group.layers == {"gate_up_proj": {"0": "IQ4_XS", "1": "Q4_K"}}
    assert group.nbytes == 2 * ROWS * max(COLUMNS // 256 * 144, COLUMNS // 256 * 136)


def test_one_tensor_for_several_shards() -> None:
    made = Made().tensor("attn_qkv", "Q4_K", "in_proj", (0, 1, 2))
    _, storage = made.planned()
    assert storage.groups[0].layers == {"in_proj": {"0": "Q4_K", "1": "Q4_K", "2": "Q4_K"}}


def test_experts_have_one_type_for_gate_and_up() -> None:
    """Case C7: Q5_K down with Q4_K gate and up goes; two types in one stack do not."""
    assert experts(Made(), "Q4_K", "Q4_K", "Q5_K").reasons() == {"mlp.experts": ""}
    assert experts(Made(), "Q4_K", "Q6_K").reasons() == {"mlp.experts": "Q4_K, Q6_K in one w13_weight"}


def test_experts_without_a_gate_are_dense() -> None:
    made = Made().tensor("ffn_up_exps", "Q4_K", "mlp.experts", "w1", kind="experts", leaf="w13_weight")
    made.tensor("ffn_down_exps", "Q4_K", "mlp.experts", "w2", kind="experts", leaf="w2_weight")
    assert made.reasons() == {"mlp.experts": "experts of w1, w2: gate, up and down are expected"}


def test_experts_that_are_spread_over_ranks_are_dense() -> None:
    made = experts(Made()).tensor("ffn_down", "Q4_K", "mlp.down_proj")
    reasons = made.reasons(tensor_parallel=2, expert_parallel=True)
    assert reasons["mlp.down_proj"] == "" and "expert parallelism" in reasons["mlp.experts"]


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (Transform("copy"), ""),
        (Transform("rope_rows", 8), ""),
        (Transform("add", -1), "its values are computed (add:-1)"),
        (Transform("transpose"), "its values are computed (transpose)"),
    ],
)
def test_only_whole_rows_move_packed(transform: Transform, reason: str) -> None:
    assert Made().tensor("x", "Q8_0", "c_attn", transform=transform).reasons() == {"c_attn": reason}


def test_tensors_of_two_types_are_not_joined_packed() -> None:
    made = Made().tensor("a", "Q8_0", "in_proj", transform=Transform("join_rows"), tensors=("a", "b"))
    assert made.reasons() == {"in_proj": ""}
    made.tensors["b"] = replace(made.tensors["b"], ggml_type="Q4_0")
    assert made.reasons() == {"in_proj": "a.weight is joined of Q8_0, Q4_0"}


def test_what_the_model_computes_with_is_dense() -> None:
    made = Made().tensor("attn_q", "Q8_0", "qkv_proj", "q")
    made.rewritten.add("attn_q.weight")
    assert made.reasons() == {"qkv_proj": "the model's load_weights computes with attn_q.weight"}


@pytest.mark.parametrize("type", ["MXFP4", "NVFP4", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"])
def test_types_without_a_kernel_are_dense(type: str) -> None:
    """Cases C5 and C6: known before the load, and said."""
    assert Made().tensor("x", type, "down_proj").reasons() == {"down_proj": f"no kernel for {type}"}


@pytest.mark.parametrize(("kept", "reason"), [(512, ""), (256, ""), (128, "TP 8 cuts a block: 1024 columns of Q4_K")])
def test_blocks_are_not_cut(kept: int, reason: str) -> None:
    """Case F3."""
    found = Made().tensor("x", "Q4_K", "down_proj", columns=kept).reasons(tensor_parallel=8)
    assert re.match(re.escape(reason), found["down_proj"])
    assert bool(found["down_proj"]) is bool(reason)


@pytest.mark.parametrize(("elements", "packed"), [((1 << 31) - 1024, True), (1 << 31, False)])
def test_parameters_of_two_to_the_31_are_dense(elements: int, packed: bool) -> None:
    """Case K6."""
    found = Made().tensor("x", "Q8_0", "head", shape=(elements // 1024, 1024)).reasons()
    assert (found["head"] == "") is packed
    assert packed or "the kernels count to 2^31" in found["head"]


def test_every_rule_is_tried_here() -> None:
    assert [name for name, _ in RULES] == [
        "read elsewhere",
        "not quantisable",
        "plain beside quantised",
        "computed values",
        "rewritten by the model",
        "no kernel",
        "gateless experts",
        "mixed types",
        "expert parallelism",
        "cut blocks",
        "too large",
    ]


# The whole.


def test_the_platform_speaks_first() -> None:
    made = Made(packing=Packing(problem="no packed kernels for the platform cpu")).tensor("x", "Q8_0", "down_proj")
    _, storage = made.planned()
    assert storage.groups == () and storage.note == "no packed kernels for the platform cpu"


def test_a_tensor_of_two_layers_is_packed_for_both_or_neither() -> None:
    made = Made().tensor("x", "Q8_0", "a", checkpoint="x.weight").tensor("x", "Q8_0", "b", checkpoint="x.weight")
    made.assignments = made.assignments[:1]
    assert made.reasons() == {"a": "", "b": ""}
    made.modules["b"] = Module("linear", ("b",), "no")
    assert made.reasons() == {"a": "shares x with b", "b": "no"}


def test_demoted_layers_take_along_what_shares_a_tensor() -> None:
    made = Made().tensor("x", "Q8_0", "a", checkpoint="x.weight").tensor("x", "Q8_0", "b", checkpoint="x.weight")
    made.assignments = made.assignments[:1]
    made.tensor("y", "Q8_0", "c")
    plan, storage = made.planned()
    found = demoted(storage, {(Role.TARGET, "a"): "vLLM does not fill it"})
    assert {g.module: (g.packed, g.reason) for g in found.groups} == {
        "a": (False, "vLLM does not fill it"),
        "b": (False, "shares x with a"),
        "c": (True, ""),
    }
    assert found.layers(Role.TARGET) == {"c": {"": "Q8_0"}} and found.packed_tensors(Role.TARGET) == {"y"}
    assert [a.checkpoint for a in packed_plan(plan, found).assignments] == [("x.weight",), ("y.qweight",)]


def test_names_change_at_their_end_only() -> None:
    """Case A4: `weights_proj` stays."""
    name = "model.layers.2.self_attn.indexer.weights_proj"
    assert packed_name(f"{name}.weight") == f"{name}.qweight"
    assert packed_name(f"{name}.bias") == f"{name}.bias"
