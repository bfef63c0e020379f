"""The trace: whatever a model's own load_weights does with a name is written down, down to shard and expert."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from ggufmap.mapping.plan import ModelTrace, ParameterUse
from ggufmap.target.trace import trace_names

HIDDEN = 8


def shard_loader(parameter: nn.Parameter, loaded_weight: torch.Tensor, loaded_shard_id: str) -> None:
    """As vLLM's QKVParallelLinear: one projection into its part of the fused rows."""
    first = {"q": 0, "k": 8, "v": 12}[loaded_shard_id]
    part = parameter.data.narrow(0, first, 8 if loaded_shard_id == "q" else 4)
    assert part.shape == loaded_weight.shape, f"{tuple(loaded_weight.shape)} does not fit\nand more lines"
    part.copy_(loaded_weight)


def expert_loader(
    parameter: nn.Parameter, loaded_weight: torch.Tensor, name: str, shard_id: str, expert_id: int
) -> bool:
    """As vLLM's FusedMoE with expert parallelism: experts of another rank are declined."""
    if expert_id >= parameter.shape[0]:
        return False
    half = parameter.data[expert_id].narrow(0, {"w1": 0, "w3": 4}[shard_id], 4)
    half.copy_(loaded_weight)
    return True


class Model(nn.Module):
    """A small model with the loading habits of vLLM's: fused, stacked, padded, tied, and picky about names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(12, HIDDEN))
        self.qkv = nn.Parameter(torch.empty(16, HIDDEN))
        self.qkv.weight_loader = shard_loader  # type: ignore[attr-defined]
        self.w13 = nn.Parameter(torch.empty(2, 8, HIDDEN))
        self.w13.weight_loader = expert_loader  # type: ignore[attr-defined]
        self.norm = nn.Parameter(torch.empty(HIDDEN))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if name in ("q", "k", "v"):
                self.qkv.weight_loader(self.qkv, tensor, name)  # type: ignore[attr-defined]
            elif name.startswith("experts."):
                _, expert, shard = name.split(".")
                self.w13.weight_loader(  # type: ignore[attr-defined]
                    self.w13, tensor, name, shard_id={"gate": "w1", "up": "w3"}[shard], expert_id=int(expert)
                )
            elif name == "embed":
                self.embed.data[:10].copy_(tensor)
                self.embed.data[10:].fill_(0)
            elif name.startswith("ignored"):
                continue
            else:
                parameters[name].data.copy_(tensor)


NAMES: dict[str, tuple[int, ...]] = {
    "embed": (10, HIDDEN),
    "q": (8, HIDDEN),
    "k": (4, HIDDEN),
    "v": (4, HIDDEN),
    **{f"experts.{e}.{half}": (4, HIDDEN) for e in range(2) for half in ("gate", "up")},
    "norm": (HIDDEN,),
}


def trace(changes: dict[str, tuple[int, ...] | None] | None = None) -> ModelTrace:
    names = {name: shape for name, shape in {**NAMES, **(changes or {})}.items() if shape is not None}
    with torch.device("meta"):
        model = Model()
    return trace_names(model, list(names.items()))


def problems(found: ModelTrace) -> dict[str, str]:
    return {name: p.problem for name, p in found.parameters.items() if p.problem is not None}


def test_a_full_set_of_names_fills_everything() -> None:
    found = trace()
    assert problems(found) == {}
    assert not found.unused and not found.refused and not found.deferred
    assert found.class_name == "Model"
    assert found.uses == {
        "embed": (ParameterUse("embed"),),
        "q": (ParameterUse("qkv", "q"),),
        "k": (ParameterUse("qkv", "k"),),
        "v": (ParameterUse("qkv", "v"),),
        "experts.0.gate": (ParameterUse("w13", "w1", 0),),
        "experts.0.up": (ParameterUse("w13", "w3", 0),),
        "experts.1.gate": (ParameterUse("w13", "w1", 1),),
        "experts.1.up": (ParameterUse("w13", "w3", 1),),
        "norm": (ParameterUse("norm"),),
    }
    qkv = found.parameters["qkv"]
    assert (qkv.shape, qkv.written, qkv.complete) == ((16, HIDDEN), 128, True)


def test_a_missing_name_leaves_its_part_unwritten() -> None:
    assert problems(trace({"k": None})) == {"qkv": "32 of 128 elements are not written"}
    assert problems(trace({"experts.1.up": None})) == {"w13": "32 of 128 elements are not written"}
    assert problems(trace({"norm": None})) == {"norm": "nothing is written"}


def test_a_name_that_nobody_takes_is_unused_with_the_reason() -> None:
    found = trace({"stranger": (4,), "ignored.x": (4,), "another": (4,)})
    assert found.unused == {
        "stranger": "KeyError: 'stranger'",
        "another": "KeyError: 'another'",
        "ignored.x": "no parameter is written",
    }
    assert problems(found) == {}


def test_a_shape_that_a_weight_loader_refuses_is_said_in_one_line() -> None:
    found = trace({"k": (5, HIDDEN)})
    assert found.refused == {"k": f"qkv (16, {HIDDEN}) refuses k (5, {HIDDEN}): (5, {HIDDEN}) does not fit"}
    assert "k" not in found.unused
    assert problems(found) == {"qkv": "32 of 128 elements are not written"}


def test_a_shape_that_a_plain_copy_refuses_is_unused() -> None:
    found = trace({"norm": (HIDDEN + 1,)})
    assert set(found.unused) == {"norm"}
    assert found.unused["norm"].startswith("RuntimeError: ")
    assert problems(found) == {"norm": "nothing is written"}


def test_a_name_that_comes_twice_in_effect_is_written_more_than_once() -> None:
    class Careless(Model):
        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            super().load_weights((("norm" if name == "norm2" else name), tensor) for name, tensor in weights)

    with torch.device("meta"):
        model = Careless()
    found = trace_names(model, [*NAMES.items(), ("norm2", (HIDDEN,))])
    assert problems(found) == {"norm": "some elements are written more than once"}
    assert found.uses["norm2"] == (ParameterUse("norm"),)


def test_experts_of_another_rank_are_neither_unused_nor_missing() -> None:
    found = trace({"experts.2.gate": (4, HIDDEN), "experts.3.up": (4, HIDDEN)})
    assert not found.unused and not found.refused
    assert problems(found) == {}
    assert "experts.2.gate" not in found.uses


def test_a_model_that_fails_without_a_name_is_not_papered_over() -> None:
    class Broken(Model):
        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            raise RuntimeError("broken from the start")

    with torch.device("meta"):
        model = Broken()
    with pytest.raises(RuntimeError, match="broken from the start"):
        trace_names(model, list(NAMES.items()))


def test_the_model_s_own_loaders_are_back_afterwards() -> None:
    with torch.device("meta"):
        model = Model()
    trace_names(model, list(NAMES.items()))
    assert getattr(model.qkv, "weight_loader", None) is shard_loader
    assert getattr(model.w13, "weight_loader", None) is expert_loader
