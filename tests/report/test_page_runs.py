"""Lists written short come back as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.page_runs import unpack_names, unpack_uses

from ggufmap.report.page_runs import pack_names, pack_uses

STACK = [f"model.layers.3.mlp.experts.{i}.down_proj.weight" for i in range(256)]
PAIRS = [f"model.layers.3.mlp.experts.{i}.{x}_proj.weight" for i in range(64) for x in ("gate", "up")]


def test_a_stack_of_experts_is_one_run() -> None:
    assert pack_names(STACK) == [[["model.layers.3.mlp.experts.", 0, ".down_proj.weight"]], 256]
    assert pack_names(PAIRS)[1] == 64 and len(pack_names(PAIRS)[0]) == 2


@pytest.mark.parametrize(
    "names",
    [[], ["a"], ["a", "b"], ["a.1.b", "a.3.b"], ["a.01.b", "a.02.b"], ["a.9.b", "a.10.b"], ["a", "a"], STACK, PAIRS],
)
def test_names_come_back(names: list[str]) -> None:
    assert unpack_names(json.loads(json.dumps(pack_names(names)))) == names


NAMES = st.lists(
    st.sampled_from(["a", "a.0.b", "a.1.b", "a.2.b", "a.3.b", "0.1.2", "a..b", "a.\u0663.b", ""]), max_size=12
)


@given(NAMES)
def test_any_names_come_back(names: list[str]) -> None:
    assert unpack_names(pack_names(names)) == names


def use(name: str, shard: Any, expert: int | None, checkpoint: int) -> dict[str, Any]:
    return {"name": name, "shard": shard, "experts": expert, "checkpoint": checkpoint}


@pytest.mark.parametrize(
    "uses",
    [
        [use("w2", "w2", i, i) for i in range(256)],
        [use("w13", x, i // 2, i) for i in range(64) for x in [("w1", "w3")[i % 2]]],
        [use("qkv", None, None, 0), use("other", "q", None, 0)],
        [use("w2", "w2", i, i) for i in range(100, 132)],  # one rank's experts
        [use("w2", "w2", i, i) for i in (0, 2, 1)],
        [],
    ],
    ids=["stack", "pairs", "two of one", "a rank's", "out of order", "none"],
)
def test_uses_come_back(uses: list[dict[str, Any]]) -> None:
    names = max((entry["checkpoint"] + 1 for entry in uses), default=1)
    assert unpack_uses(json.loads(json.dumps(pack_uses(uses, names)))) == uses


def test_uses_of_a_stack_are_one_run() -> None:
    packed = pack_uses([use("w2", "w2", i, i) for i in range(256)], 256)
    assert packed == [[["w2", None, ""]], 256, ["w2"], [0]]
