"""The resolver: every tensor has a place or a stated reason, and so has every row."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.archs import find_architecture
from ggufmap.archs.base import Architecture, Rule, Skip, block, only, top
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MetadataError
from ggufmap.mapping import Plan, Role, resolve
from ggufmap.mapping.transforms import Transform

Meta = Mapping[str, tuple[int, Any]]


class Planner:
    """Writes a small Llama, or what a test makes of it, and resolves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        tensors: Sequence[TensorSpec] | None = None,
        metadata: Meta | None = None,
        rows: Architecture | None = None,
    ) -> Plan:
        path = small.write_llama(self.folder / "m.gguf", metadata, tensors)
        with open_checkpoint(path) as checkpoint:
            return resolve(checkpoint, rows or find_architecture(checkpoint.architecture, "m.gguf"))


@pytest.fixture
def plan(tmp_path: Path) -> Planner:
    return Planner(tmp_path)


def accounted(found: Plan) -> list[str]:
    """Every tensor name of every class, with repetitions."""
    return (
        [name for a in found.assignments for name in a.tensors]
        + [x.tensor for x in found.skipped]
        + [x.tensor for x in found.unmapped]
        + [x.tensor for x in found.mismatched]
    )


def test_a_good_file_maps_without_a_fault(plan: Planner) -> None:
    found = plan()
    assert found.ok and not found.problems()
    assert found.model_class == "LlamaForCausalLM"
    assert sorted(accounted(found)) == sorted(str(spec.name) for spec in small.llama_tensors())
    by_tensor = {a.tensors[0]: a for a in found.assignments}
    query, key = by_tensor["blk.1.attn_q.weight"], by_tensor["blk.1.attn_k.weight"]
    assert query.checkpoint == ("model.layers.1.self_attn.q_proj.weight",)
    assert (query.transform, key.transform) == (Transform("rope_rows", 4), Transform("rope_rows", 2))
    assert by_tensor["blk.1.attn_v.weight"].transform == Transform("copy")
    assert by_tensor["token_embd.weight"].shapes == ((48, 64),)
    assert {a.role for a in found.assignments} == {Role.TARGET}


def test_facts_of_the_model(plan: Planner) -> None:
    model = plan().model
    assert (model.architecture, model.name, model.splits, model.blocks, model.draft_blocks) == (
        "llama",
        "small",
        1,
        2,
        0,
    )
    assert model.tensors["blk.0.ffn_down.weight"].shape == (64, 128)
    assert model.tensors["blk.0.ffn_down.weight"].ggml_type == "F32"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("blk.2.attn_q.weight", "block 2 is beyond the 2 blocks of this model"),
        ("blk.0.ffn_gate_exps.weight", "a mixture-of-experts tensor; the llama rows are for dense models"),
        ("blk.0.ffn_gate_inp.weight", "a mixture-of-experts tensor; the llama rows are for dense models"),
        ("blk.1.attn_qq.weight", "no row for blk.{bid}.attn_qq.weight (nearest: blk.{bid}.attn_q.weight)"),
        ("output_norm.bias", "no row for output_norm.bias"),
        ("v.patch_embd.weight", "no row for v.patch_embd.weight"),
        ("blk.0.attn_q.weight.extra", "no row for blk.{bid}.attn_q.weight.extra"),
        ("prefix.blk.0.attn_q.weight", "no row for prefix.blk.{bid}.attn_q.weight"),
    ],
)
def test_unmapped_tensors_have_a_probable_cause(plan: Planner, name: str, reason: str) -> None:
    found = plan([*small.llama_tensors(), small.tensor(name, 4)])
    assert [x.tensor for x in found.unmapped] == [name]
    assert found.unmapped[0].reason.startswith(reason)
    assert not found.ok
    assert found.problems() == [f"unmapped {name}: {found.unmapped[0].reason}"]


def test_unmapped_tensors_are_listed_in_file_order(plan: Planner) -> None:
    names = ["z.weight", "a.weight", "m.weight"]
    found = plan([small.tensor(names[0], 4), *small.llama_tensors(), *(small.tensor(n, 4) for n in names[1:])])
    assert [x.tensor for x in found.unmapped] == names


def test_missing_tensors_are_named_on_both_sides(plan: Planner) -> None:
    found = plan(small.without(small.llama_tensors(), "blk.1.ffn_up.weight", "output_norm.weight"))
    assert {(x.parameter, x.reason) for x in found.missing} == {
        ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight is not in the file"),
        ("model.norm.weight", "output_norm.weight is not in the file"),
    }
    assert not found.ok


def test_rows_without_a_tensor_say_why(plan: Planner) -> None:
    reasons = {x.tensor: x.reason for x in plan(small.llama_tensors(tied=True)).phantom}
    assert reasons["output.weight"] == "optional: tied to token_embd.weight"
    assert reasons["blk.1.attn_q.bias"] == "optional: this model has no such bias"
    assert "output.weight" not in {x.tensor for x in plan().phantom}


PAIR = (
    Rule(("blk.{bid}.k.weight", "blk.{bid}.v.weight"), ("layers.{bid}.kv",), "mla_kv_b:2"),
    Rule(("blk.{bid}.kv.weight",), ("layers.{bid}.kv",), optional="older files have it"),
)


def pair_rows(*extra: Rule, skips: tuple[Skip, ...] = ()) -> Architecture:
    return Architecture(("llama",), "x", "XForCausalLM", (*PAIR, *extra), (), skips=skips)


K = small.tensor("blk.0.k.weight", 2, 8, 4)
V = small.tensor("blk.0.v.weight", 2, 3, 8)
KV = small.tensor("blk.0.kv.weight", 14, 8)
ONE_BLOCK = small.llama_metadata(1)


def test_a_pair_makes_one_tensor_and_supersedes_the_other_row(plan: Planner) -> None:
    found = plan([K, V], ONE_BLOCK, pair_rows())
    (made,) = found.assignments
    assert (made.tensors, made.checkpoint, made.shapes) == (
        ("blk.0.k.weight", "blk.0.v.weight"),
        ("layers.0.kv",),
        ((14, 8),),
    )
    assert [(x.tensor, x.reason) for x in found.phantom] == [
        ("blk.0.kv.weight", "superseded by blk.0.k.weight + blk.0.v.weight")
    ]
    assert found.ok


def test_the_other_row_alone_supersedes_the_pair(plan: Planner) -> None:
    found = plan([KV], ONE_BLOCK, pair_rows())
    assert [a.tensors for a in found.assignments] == [("blk.0.kv.weight",)]
    assert [(x.tensor, x.reason) for x in found.phantom] == [
        ("blk.0.k.weight + blk.0.v.weight", "superseded by blk.0.kv.weight")
    ]
    assert found.ok


def test_both_rows_at_once_use_the_first(plan: Planner) -> None:
    found = plan([K, V, KV], ONE_BLOCK, pair_rows())
    assert [a.tensors for a in found.assignments] == [("blk.0.k.weight", "blk.0.v.weight")]
    assert [(x.tensor, x.reason) for x in found.skipped] == [
        ("blk.0.kv.weight", "the same values as blk.0.k.weight + blk.0.v.weight")
    ]


def test_half_a_pair_is_missing_and_says_which_half(plan: Planner) -> None:
    found = plan([K], ONE_BLOCK, pair_rows())
    assert [(x.parameter, x.reason) for x in found.missing] == [
        ("layers.0.kv", "blk.0.k.weight is in the file, blk.0.v.weight is not")
    ]
    assert not found.unmapped


def test_halves_that_do_not_fit_are_mismatched(plan: Planner) -> None:
    found = plan([K, small.tensor("blk.0.v.weight", 2, 3, 9)], ONE_BLOCK, pair_rows())
    (wrong,) = found.mismatched
    assert wrong.tensor == "blk.0.k.weight"
    assert "rank 8 of attn_k_b is not the rank 9" in wrong.reason


def test_two_required_rows_for_one_parameter_are_a_conflict(plan: Planner) -> None:
    rows = pair_rows(top("a.weight", "same"), top("b.weight", "same"))
    found = plan([K, V, small.tensor("a.weight", 4), small.tensor("b.weight", 4)], ONE_BLOCK, rows)
    assert [(x.tensor, x.reason) for x in found.mismatched] == [("b.weight", "same is also made of a.weight")]


def test_skipped_tensors_keep_their_reason(plan: Planner) -> None:
    found = plan([*small.llama_tensors(), small.tensor("rope_freqs.weight", 8)])
    (skipped,) = found.skipped
    assert skipped.tensor == "rope_freqs.weight"
    assert "RoPE frequency factors" in skipped.reason
    assert found.ok


def test_skips_by_prefix_take_the_block_s_own_tensors_only(plan: Planner) -> None:
    rows = pair_rows(skips=(Skip("blk.{bid}.side.*", "not needed", blocks=("trunk",)),))
    found = plan([K, V, small.tensor("blk.0.side.a", 4), small.tensor("blk.7.side.a", 4)], ONE_BLOCK, rows)
    assert [x.tensor for x in found.skipped] == ["blk.0.side.a"]
    assert [x.tensor for x in found.unmapped] == ["blk.7.side.a"]


def test_rows_of_another_kind_of_block_are_no_place(plan: Planner) -> None:
    rows = pair_rows(*only((block("x.weight", "x.weight"),), "has:expert_count"))
    found = plan([K, V, small.tensor("blk.0.x.weight", 4)], ONE_BLOCK, rows)
    assert [x.reason for x in found.unmapped] == ["block 0 is not of a kind that has blk.{bid}.x.weight"]


@pytest.mark.parametrize("experts", [3, 896])  # F4: as many as Kimi K3 has; no limit is ours
def test_a_stack_is_one_parameter_per_expert(plan: Planner, experts: int) -> None:
    rows = pair_rows(Rule(("blk.{bid}.exps",), ("layers.{bid}.experts.{eid}.w",), "experts"))
    found = plan([K, V, small.tensor("blk.0.exps", experts, 4, 8)], ONE_BLOCK, rows)
    stack = next(a for a in found.assignments if a.tensors == ("blk.0.exps",))
    assert stack.checkpoint == tuple(f"layers.0.experts.{e}.w" for e in range(experts))
    assert stack.shapes == ((4, 8),) * experts


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (small.tensor("blk.0.attn_q.weight", 63, 64), "shape (63, 64): 63 rows cannot be split into 4 heads"),
        (TensorSpec("blk.0.attn_q.weight", ()), "shape (1,): 1 rows cannot be split into 4 heads"),
        (TensorSpec("blk.0.attn_q.weight", (64, 64), 4, bytes(2304)), "ggml type Q4_2 (id 4): this type was removed"),
        (
            TensorSpec("blk.0.attn_q.weight", (64, 64), 43, bytes(2304)),
            "ggml type unknown_43 (id 43): this id is unknown",
        ),
        (TensorSpec("blk.0.attn_q.weight", (64, 0)), "shape (0, 64) holds no values"),
        (TensorSpec("blk.0.attn_q.weight", (0, 64)), "shape (64, 0) holds no values"),
    ],
)
def test_shapes_and_types_that_cannot_be_used_are_mismatched(plan: Planner, bad: TensorSpec, reason: str) -> None:
    found = plan(small.replaced(small.llama_tensors(), bad))
    assert [x.tensor for x in found.mismatched] == ["blk.0.attn_q.weight"]
    assert found.mismatched[0].reason.startswith(reason)
    assert not found.ok
    assert sorted(accounted(found)) == sorted(str(spec.name) for spec in small.llama_tensors())


def test_an_unusable_type_nobody_needs_is_no_mismatch(plan: Planner) -> None:
    found = plan([*small.llama_tensors(), TensorSpec("rope_freqs.weight", (8,), 43, bytes(32))])
    assert not found.mismatched


@pytest.mark.parametrize(
    ("count", "message"),
    [
        ((gb.UINT32, 0), r"llama\.block_count is 0, the file has 21 tensors"),
        ((gb.INT32, -1), r"llama\.block_count is -1"),
        ((gb.UINT32, 4_000_000_000), r"llama\.block_count is 4000000000, the file has 21 tensors"),
        ((gb.UINT64, (1 << 64) - 1), r"llama\.block_count is 18446744073709551615"),
    ],
)
def test_absurd_block_counts_are_refused_at_once(plan: Planner, count: tuple[int, int], message: str) -> None:
    with pytest.raises(FileError, match=message):
        plan(metadata=small.llama_metadata() | {"llama.block_count": count})


@pytest.mark.parametrize("name", ["blk.999999999.attn_q.weight", "blk.4294967295.x", f"blk.{'9' * 200}.x"])
def test_a_block_number_in_a_name_does_not_make_the_count_plausible(plan: Planner, name: str) -> None:
    metadata = small.llama_metadata() | {"llama.block_count": (gb.UINT32, 1_000_000_000)}
    with pytest.raises(FileError, match="block_count is 1000000000"):
        plan([*small.llama_tensors(), small.tensor(name, 4)], metadata)


@pytest.mark.parametrize("numbers", [[999_999_999], [1, 999_999_999], [0, 2]])
def test_draft_blocks_anywhere_are_refused_at_once(plan: Planner, numbers: list[int]) -> None:
    drafts = [small.tensor(f"blk.{n}.nextn.eh_proj.weight", 4) for n in numbers]
    with pytest.raises(FileError, match="draft blocks"):
        plan([*small.llama_tensors(), *drafts])


def test_block_count_must_be_there_and_a_number(plan: Planner) -> None:
    metadata = small.llama_metadata()
    del metadata["llama.block_count"]
    with pytest.raises(MetadataError, match=r"llama\.block_count is missing"):
        plan(metadata=metadata)
    with pytest.raises(MetadataError, match=r"llama\.block_count should be an integer, found string"):
        plan(metadata=metadata | {"llama.block_count": (gb.STRING, "2")})


def test_too_few_blocks_leave_the_rest_unmapped(plan: Planner) -> None:
    found = plan(metadata=small.llama_metadata(1))
    assert {x.tensor.split(".")[1] for x in found.unmapped} == {"1"}
    assert len(found.unmapped) == 9


def test_too_many_blocks_are_missing(plan: Planner) -> None:
    found = plan(metadata=small.llama_metadata(3))
    assert {x.parameter.split(".")[2] for x in found.missing} == {"2"}
    assert len(found.missing) == 9


def test_key_value_heads_may_be_left_out_or_said_per_block(plan: Planner) -> None:
    metadata = small.llama_metadata()
    key = "llama.attention.head_count_kv"
    del metadata[key]

    def heads(found: Plan) -> list[int | None]:
        return [a.transform.argument for a in found.assignments if "attn_k." in a.tensors[0]]

    assert heads(plan(metadata=metadata)) == [4, 4]
    per_block = metadata | {key: (gb.ARRAY, gb.Array(gb.INT32, [2, 1]))}
    assert heads(plan(metadata=per_block)) == [2, 1]
    too_few = metadata | {key: (gb.ARRAY, gb.Array(gb.INT32, [2]))}
    with pytest.raises(FileError, match=r"head_count_kv has 1 values, none for blk\.1\.attn_k\.weight"):
        plan(metadata=too_few)
    del metadata["llama.attention.head_count"]
    with pytest.raises(MetadataError, match=r"llama\.attention\.head_count is missing"):
        plan(metadata=metadata)


def test_the_head_is_where_the_set_has_it(tmp_path: Path) -> None:
    """Tied or not is decided on the union of all splits."""
    tensors = small.llama_tensors()
    for name, parts, tied in (
        ("last", [tensors[:9], tensors[9:-1], tensors[-1:]], False),
        ("none", [tensors[:9], tensors[9:-1]], True),
    ):
        paths = small.write_splits(tmp_path / name, parts)
        for path in (paths[0], paths[-1]):
            with open_checkpoint(path) as checkpoint:
                found = resolve(checkpoint, find_architecture("llama", "m.gguf"))
            assert found.ok
            assert found.model.splits == len(parts)
            assert ("lm_head.weight" in {n for a in found.assignments for n in a.checkpoint}) is not tied


def seconds(path: Path) -> float:
    """CPU time of resolving the file, the least of three."""
    with open_checkpoint(path) as checkpoint:
        architecture = find_architecture(checkpoint.architecture, path.name)
        times = []
        for _ in range(3):
            started = time.process_time()
            resolve(checkpoint, architecture)
            times.append(time.process_time() - started)
    return min(times)


def test_a_hundred_thousand_names_that_look_like_rows_cost_no_more_than_others(tmp_path: Path) -> None:
    """The search for the nearest row is for the few kinds of tensors that a family forgot, not for a hostile file."""
    count = 20_000
    plain = [TensorSpec(f"blk.0.x{i}_exps", (1,)) for i in range(count)]
    near = [TensorSpec(f"blk.0.attn_q{i}.weight", (1,)) for i in range(count)]
    without, searched = (
        seconds(small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), *more]))
        for more in (plain, near)
    )
    assert searched < 5 * without + 0.2  # the search itself takes 0.2 s at most; without a limit it took 3.5


def test_the_first_names_still_get_their_nearest_row(plan: Planner) -> None:
    names = [f"blk.{i % 2}.attn_qq{i // 2}.weight" for i in range(400)]
    found = plan([*small.llama_tensors(), *(TensorSpec(name, (1,)) for name in names)])
    ends = [x.reason.endswith("(nearest: blk.{bid}.attn_q.weight)") for x in found.unmapped]
    assert ends == [True] * 200 + [False] * 200  # of a kind, all blocks count as one
    assert all(x.reason.startswith("no row for blk.{bid}.attn_qq") for x in found.unmapped)


def test_time_grows_with_the_blocks_not_with_their_square(tmp_path: Path) -> None:
    """Blocks are skipped by a pattern in this family, each of thousands was compared with each tensor."""

    def drafts(count: int) -> Path:
        meta: Meta = {key.replace("llama.", "mimo2."): value for key, value in small.llama_metadata(1).items()}
        meta |= {
            "general.architecture": (gb.STRING, "mimo2"),
            "mimo2.block_count": (gb.UINT32, count + 1),
            "mimo2.nextn_predict_layers": (gb.UINT32, count),
        }
        names = [f"blk.{bid}.nextn.eh_proj.weight" for bid in range(1, count + 1)]
        tensors = [small.tensor("blk.0.attn_norm.weight", 4), *(TensorSpec(name, (1,)) for name in names)]
        path = tmp_path / f"{count}.gguf"
        path.write_bytes(small.encode(meta, tensors))
        return path

    few, many = drafts(1000), drafts(8000)
    assert seconds(many) / 8 < 4 * seconds(few)  # it was eight times as much
