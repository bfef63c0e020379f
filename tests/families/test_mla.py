"""Multi-head latent attention: kv_b_proj from both generations of files, head sizes from the keys that mean them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from families.tracing import Tracer
from families.variants import changed, codes, config, loaded, planned, same
from safetensors.torch import load_file
from support import gguf_edit, tiny_moe
from support.converter import TinyFactory
from support.gguf_edit import Edited

from ggufmap.mapping import Role

NAME = "deepseek_v3"
CONFIG = tiny_moe.SPECS[NAME].text
HEADS, NOPE, V, RANK = (
    CONFIG[key] for key in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank")
)
BLOCKS = range(4)


def halves(bid: int) -> tuple[str, str]:
    return f"blk.{bid}.attn_k_b.weight", f"blk.{bid}.attn_v_b.weight"


def whole(file: Edited, bid: int) -> npt.NDArray[np.float32]:
    """kv_b of a block, by plain numpy."""
    k_b, v_b = (file.tensors[name].values for name in halves(bid))
    assert k_b.shape == (HEADS, RANK, NOPE) and v_b.shape == (HEADS, V, RANK)
    return np.concatenate((k_b.transpose(0, 2, 1), v_b), axis=1).reshape(HEADS * (NOPE + V), RANK)


def add_whole(file: Edited) -> None:
    for bid in BLOCKS:
        file.tensors[f"blk.{bid}.attn_kv_b.weight"] = gguf_edit.stored(whole(file, bid))


def only_whole(file: Edited) -> None:
    """A file from before the split."""
    add_whole(file)
    file.drop_tensors(lambda name: ".attn_k_b." in name or ".attn_v_b." in name)


def flat_halves(file: Edited) -> None:
    """A file from the months in which both halves were matrices."""
    for bid in BLOCKS:
        for name in halves(bid):
            values = file.tensors[name].values
            file.tensors[name] = gguf_edit.stored(values.reshape(-1, values.shape[-1]))


@pytest.mark.parametrize("layout", [only_whole, add_whole, flat_halves])
def test_every_generation_of_files_gives_the_same_kv_b(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, layout: Callable[[Edited], None]
) -> None:
    model, original = tiny(NAME)
    path = changed(original, tmp_path / "m.gguf", layout)
    plan = tracer(path).plan
    assert plan.ok, plan.problems()
    assert same(loaded(path), load_file(model.folder / "model.safetensors"))
    superseded = {x.tensor: x.reason for x in plan.skipped}
    if layout is add_whole:
        assert superseded == {
            f"blk.{bid}.attn_kv_b.weight": f"the same values as {' + '.join(halves(bid))}" for bid in BLOCKS
        }
    else:
        assert not superseded


def test_a_split_pair_supersedes_the_whole(tiny: TinyFactory) -> None:
    plan = planned(tiny(NAME)[1])
    found = {x.tensor: x.reason for x in plan.phantom if "attn_kv_b" in x.tensor}
    assert found == {f"blk.{bid}.attn_kv_b.weight": f"superseded by {' + '.join(halves(bid))}" for bid in BLOCKS}


@pytest.mark.parametrize("bid", [1, 3])
@pytest.mark.parametrize("half", [0, 1])
def test_half_a_pair_is_an_error(tiny: TinyFactory, tmp_path: Path, bid: int, half: int) -> None:
    gone, kept = halves(bid)[half], halves(bid)[1 - half]
    path = changed(tiny(NAME)[1], tmp_path / "m.gguf", lambda f: f.drop_tensors(lambda name: name == gone))
    plan = planned(path)
    (missing,) = plan.missing
    assert missing.parameter == f"model.layers.{bid}.self_attn.kv_b_proj.weight"
    assert missing.role is (Role.DRAFT if bid == 3 else Role.TARGET)
    assert missing.reason == f"{kept} is in the file, {gone} is not"
    assert not plan.unmapped


def test_a_pair_may_sit_in_two_splits(tiny: TinyFactory, tracer: Tracer, tmp_path: Path) -> None:
    model, original = tiny(NAME)
    file = gguf_edit.read(original)
    last = [name for name in file.tensors if "attn_v_b" in name]
    first = file.write_splits(tmp_path, [[name for name in file.tensors if name not in last], last])
    plan = tracer(first).plan
    assert plan.ok, plan.problems()
    assert plan.model.splits == 2
    assert same(loaded(first), load_file(model.folder / "model.safetensors"))


def test_halves_that_do_not_fit_are_a_mismatch(tiny: TinyFactory, tmp_path: Path) -> None:
    def change(file: Edited) -> None:
        file.tensors[halves(1)[0]] = gguf_edit.stored(np.zeros((HEADS, RANK // 2, NOPE)))
        file.tensors[halves(2)[1]] = gguf_edit.stored(np.zeros((HEADS + 1, V, RANK)))

    plan = planned(changed(tiny(NAME)[1], tmp_path / "m.gguf", change))
    assert {x.tensor for x in plan.mismatched} == {halves(1)[0], halves(2)[0]}
    assert f"rank {RANK // 2} of attn_k_b is not the rank {RANK}" in plan.mismatched[0].reason


# D7, D8: MLA files have the sizes of the absorbed form under the plain keys.

MLA_NAMES = [name for name in tiny_moe.FAMILIES if "kv_lora_rank" in tiny_moe.SPECS[name].text]


@pytest.mark.parametrize("name", MLA_NAMES)
def test_head_sizes_are_mla_s_own(tiny: TinyFactory, name: str) -> None:
    _, path = tiny(name)
    file, made, original = gguf_edit.read(path), config(path).text, tiny_moe.SPECS[name].text
    rank, rope = original["kv_lora_rank"], original["qk_rope_head_dim"]
    assert file.get("{arch}.attention.key_length") == rank + rope
    assert file.get("{arch}.attention.value_length") == rank
    kv_heads = file.get("{arch}.attention.head_count_kv")
    assert set(getattr(kv_heads, "items", [kv_heads])) <= {0, 1}
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"):
        assert made[key] == original[key], key
    assert made["num_key_value_heads"] == made["num_attention_heads"] == original["num_attention_heads"]
    assert "head_dim" not in made


def test_sizes_of_old_files_are_under_the_plain_keys(tiny: TinyFactory, tracer: Tracer, tmp_path: Path) -> None:
    def change(file: Edited) -> None:
        only_whole(file)
        file.drop_keys("{arch}.attention.key_length_mla", "{arch}.attention.value_length_mla")
        file.set("{arch}.attention.key_length", NOPE + CONFIG["qk_rope_head_dim"])
        file.set("{arch}.attention.value_length", V)
        file.set("{arch}.attention.head_count_kv", HEADS)

    _, original = tiny(NAME)
    path = changed(original, tmp_path / "m.gguf", change)
    assert config(path).values == config(original).values
    assert tracer(path).plan.ok


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.key_length_mla", NOPE + CONFIG["qk_rope_head_dim"] + 32),
        ("attention.value_length_mla", V + 16),
        ("attention.q_lora_rank", CONFIG["q_lora_rank"] // 2),
        ("rope.dimension_count", CONFIG["qk_rope_head_dim"] // 2),
        ("expert_feed_forward_length", 512),
        ("expert_count", 4),
    ],
)
def test_a_size_that_the_tensors_contradict_is_found(
    tiny: TinyFactory, tracer: Tracer, tmp_path: Path, key: str, value: int
) -> None:
    path = changed(tiny(NAME)[1], tmp_path / "m.gguf", lambda file: file.set(f"{{arch}}.{key}", value))
    plan = tracer(path).plan
    assert not plan.ok
    assert plan.mismatched or plan.unmapped


def test_a_softmax_router_of_an_old_mla_model_is_not_deepseek_v3(tiny: TinyFactory) -> None:
    assert config(tiny("deepseek_v2")[1]).values["model_type"] == "deepseek_v2"
    assert config(tiny(NAME)[1]).values["model_type"] == "deepseek_v3"
    assert config(tiny("glm47_flash")[1]).values["model_type"] == "glm4_moe_lite"
    assert codes(planned(tiny("deepseek_v2")[1])) == []


def test_without_a_query_rank_the_query_is_one_matrix(tiny: TinyFactory) -> None:
    _, path = tiny("deepseek_v2_lite")
    assert config(path).values["q_lora_rank"] is None
    found = loaded(path)
    assert found["model.layers.1.self_attn.q_proj.weight"].shape == torch.Size(
        (HEADS * (NOPE + tiny_moe.SPECS["deepseek_v2_lite"].text["qk_rope_head_dim"]), tiny_moe.HIDDEN)
    )
