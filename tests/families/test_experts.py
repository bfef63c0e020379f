"""Experts: stacks cut in file order without a copy of the whole, routers with the right gating, bias and precision."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from families.tracing import Tracer
from families.variants import changed, codes, config, loaded, made_from, planned
from support import gguf_edit, tiny_moe
from support.converter import TinyFactory
from support.gguf_edit import Edited

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import Checkpoint, Tensor, open_checkpoint
from ggufmap.errors import FileError
from ggufmap.mapping import Role, resolve
from ggufmap.modeldir.config import build_config
from ggufmap.stream import stream

PARTS = ("gate", "up", "down")


def numbered(experts: int, rows: int, columns: int) -> np.ndarray:
    """Expert e filled with e."""
    return np.broadcast_to(np.arange(experts, dtype=np.float32)[:, None, None], (experts, rows, columns))


# F2: order, and memory.


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
def test_expert_e_gets_slice_e(tiny: TinyFactory, tmp_path: Path, kind: str) -> None:
    def change(file: Edited) -> None:
        for bid in (1, 2, 3):
            for part in PARTS:
                name = f"blk.{bid}.ffn_{part}_exps.weight"
                file.tensors[name] = gguf_edit.stored(numbered(*file.tensors[name].shape), kind)

    values = loaded(changed(tiny("glm46")[1], tmp_path / "m.gguf", change))
    checked = 0
    for name, tensor in values.items():
        if ".mlp.experts." in name:
            expert = int(name.split(".")[5])
            assert tensor.unique().tolist() == pytest.approx([expert], rel=1e-3), name
            checked += 1
    assert checked == 3 * 3 * tiny_moe.EXPERTS


def test_vllm_puts_each_slice_into_its_expert(tiny: TinyFactory, tracer: Tracer) -> None:
    plan = tracer(tiny("glm46")[1]).plan
    assert plan.trace is not None and plan.trace.draft is not None
    shards = {"gate": "w1", "up": "w3", "down": "w2"}
    for role, bid in ((Role.TARGET, 1), (Role.DRAFT, 3)):
        found = plan.trace.model(role)
        assert found is not None
        for expert in range(tiny_moe.EXPERTS):
            for part, shard in shards.items():
                (use,) = found.uses[f"model.layers.{bid}.mlp.experts.{expert}.{part}_proj.weight"]
                assert (use.expert, use.shard) == (expert, shard)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_stack_is_never_copied_whole(
    tiny: TinyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """64 experts of 1024 x 256: 64 MiB as float32. One expert is 1 MiB; a copy of the stack would show."""
    experts, rows, columns = 64, 1024, 256
    one = rows * columns * 4

    def change(file: Edited) -> None:
        for name, tensor in file.tensors.items():
            if name.endswith("_exps.weight"):
                shape = (1, 1, 32) if ".ffn_gate_" not in name else (experts, rows, columns)
                file.tensors[name] = gguf_edit.stored(numbered(*shape), kind)
            assert tensor

    path = changed(tiny("glm46")[1], tmp_path / "m.gguf", change)
    largest = 0
    read_into = Checkpoint.read_into

    def counting(self: Checkpoint, tensor: Tensor, buffer: memoryview, part: slice | None = None) -> None:
        nonlocal largest
        largest = max(largest, len(buffer))
        read_into(self, tensor, buffer, part)

    monkeypatch.setattr(Checkpoint, "read_into", counting)
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture("glm4moe", "m"))
        stacks = stream(plan, checkpoint, torch.float32, wanted=lambda a: a.tensors[0] == "blk.1.ffn_gate_exps.weight")
        tracemalloc.start()
        try:
            for expert, (name, tensor) in enumerate(stacks):
                assert name == f"model.layers.1.mlp.experts.{expert}.gate_proj.weight"
                assert tensor.untyped_storage().nbytes() == one  # no view into something larger
                assert float(tensor[-1, -1]) == pytest.approx(expert, rel=1e-3)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert expert == experts - 1
    assert 0 < largest <= one
    assert peak < 6 * one  # numpy's side: bytes read and values decoded, of one expert and the one before


# A7: the router's bias.

WITH_BIAS = [name for name in tiny_moe.FAMILIES if "v2" not in name]


@pytest.mark.parametrize("name", WITH_BIAS)
def test_the_router_bias_has_its_place_in_float32(tiny: TinyFactory, name: str) -> None:
    _, path = tiny(name, "bfloat16")
    plan = planned(path)
    biases = {tensor: made for tensor, made in made_from(plan).items() if "exp_probs_b" in tensor}
    first = tiny_moe.SPECS[name].text["first_k_dense_replace"]
    assert biases == {
        f"blk.{bid}.exp_probs_b.bias": f"model.layers.{bid}.mlp.gate.e_score_correction_bias"
        for bid in range(first, plan.model.blocks)
    }
    values = loaded(path)
    assert {values[made].dtype for made in biases.values()} == {torch.float32}


@pytest.mark.parametrize("name", ["glm46", "glm5", "deepseek_v32", "glm53_flash"])
def test_a_router_bias_is_not_optional_where_the_family_has_it(tiny: TinyFactory, tmp_path: Path, name: str) -> None:
    def change(file: Edited) -> None:
        file.drop_tensors(lambda tensor: tensor.endswith("2.exp_probs_b.bias"))

    plan = planned(changed(tiny(name)[1], tmp_path / "m.gguf", change))
    assert [x.parameter for x in plan.missing] == ["model.layers.2.mlp.gate.e_score_correction_bias"]


# C9: third-party quantisers touch what llama.cpp leaves alone.


@pytest.mark.parametrize("name", ["glm46", "glm5"])
def test_routers_indexers_and_norms_are_dequantised_on_arrival(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, name: str
) -> None:
    small = ("ffn_gate_inp.weight", "exp_probs_b.bias", "norm.weight", ".indexer.", "shared_head_norm.weight")

    def change(file: Edited) -> None:
        for tensor, found in file.tensors.items():
            if any(part in tensor for part in small) and found.shape[-1] % 32 == 0:
                file.tensors[tensor] = gguf_edit.stored(found.values, "Q8_0")

    path = changed(tiny(name)[1], tmp_path / "m.gguf", change)
    found = tracer(path)
    assert found.plan.ok, found.plan.problems()
    stored, values = gguf_edit.read(path), loaded(path)
    quantised = {tensor for tensor, t in stored.tensors.items() if t.kind.name == "Q8_0"}
    assert {t for t in quantised if "ffn_gate_inp" in t or "attn_norm" in t} and len(quantised) >= 13
    for tensor in quantised:
        assert np.array_equal(values[made_from(found.plan)[tensor]].numpy(), stored.tensors[tensor].values), tensor


# D4: what the router does with its scores.


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("deepseek_v2", 1, "softmax"),
        ("deepseek_v2", 2, "sigmoid"),
        ("deepseek_v2", None, "softmax"),
        ("deepseek_v3", 2, "sigmoid"),
        ("deepseek_v3", None, "sigmoid"),
        ("glm47_flash", None, "sigmoid"),
        ("glm46", None, "sigmoid"),
        ("glm5", None, "sigmoid"),
        ("glm5", 1, "softmax"),
    ],
)
def test_gating_is_what_the_header_or_the_bias_says(
    tiny: TinyFactory, tmp_path: Path, name: str, said: int | None, expected: str
) -> None:
    def change(file: Edited) -> None:
        file.drop_keys("{arch}.expert_gating_func")
        if said is not None:
            file.set("{arch}.expert_gating_func", said)

    path = changed(tiny(name)[1], tmp_path / "m.gguf", change)
    assert config(path).text["scoring_func"] == expected
    assert "scoring_func" not in config(path).assumed


def test_glm_4_7_flash_says_nothing_of_gating(tiny: TinyFactory) -> None:
    """Real files lack the key; softmax, a library's default, made its answers loop."""
    _, path = tiny("glm47_flash")
    assert gguf_edit.read(path).get("{arch}.expert_gating_func") is None
    made = config(path).values
    assert (made["scoring_func"], made["norm_topk_prob"], made["topk_method"]) == ("sigmoid", True, "noaux_tc")


def test_an_unknown_gating_function_is_an_error(tiny: TinyFactory, tmp_path: Path) -> None:
    path = changed(tiny("glm46")[1], tmp_path / "m.gguf", lambda file: file.set("{arch}.expert_gating_func", 4))
    with pytest.raises(FileError, match="expert_gating_func is 4, known are"):
        config(path)


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("glm46", True, True),
        ("glm46", False, False),
        ("glm46", None, True),
        ("deepseek_v3", None, True),
        ("deepseek_v2", None, False),
        ("deepseek_v2", True, True),
    ],
)
def test_weights_are_normalised_where_the_header_says_or_scores_are_sigmoid(
    tiny: TinyFactory, tmp_path: Path, name: str, said: bool | None, expected: bool
) -> None:
    def change(file: Edited) -> None:
        file.drop_keys("{arch}.expert_weights_norm")
        if said is not None:
            file.set("{arch}.expert_weights_norm", said)

    path = changed(tiny(name)[1], tmp_path / "m.gguf", change)
    assert config(path).values["norm_topk_prob"] is expected


def test_a_given_config_that_says_otherwise_is_reported(tiny: TinyFactory, tmp_path: Path) -> None:
    model, path = tiny("deepseek_v3")
    other = {**json.loads((model.folder / "config.json").read_text()), "scoring_func": "softmax"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with open_checkpoint(path) as checkpoint:
        made = build_config(checkpoint, find_architecture("deepseek2", "m"), tmp_path)
    assert [w.message for w in made.warnings if "scoring_func" in w.message] == [
        f"scoring_func: {tmp_path}/config.json says 'softmax', the GGUF file 'sigmoid'; the config's is used"
    ]


@pytest.mark.parametrize("name", tiny_moe.FAMILIES)
def test_counts_scale_and_groups_come_from_the_header(tiny: TinyFactory, name: str) -> None:
    _, path = tiny(name)
    made, original = config(path).text, tiny_moe.SPECS[name].text
    keys = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group")
    for key in (*keys, "topk_group", "first_k_dense_replace", "routed_scaling_factor"):
        assert made[key] == original[key], key
    assert codes(planned(path)) == []
