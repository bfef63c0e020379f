"""The probe: which class is meant, and which names a class takes as a whole."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from ggufmap.mapping.plan import ParameterUse
from ggufmap.target import compat
from ggufmap.target.aliases import tensor_aliases
from ggufmap.target.probe import find_class, find_model_type, taken_names

CLASSES = (
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "GPTNeoXForCausalLM",
    "GPT2LMHeadModel",
    "ChatGLMModel",
    "MambaModel",
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("Qwen3ForCausalLM", "Qwen3ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
        ("qwen3moe", "Qwen3MoeForCausalLM"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("gptneox", "GPTNeoXForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
        ("chatglm", "ChatGLMModel"),
        ("Gpt2ForCausalLM", "GPT2LMHeadModel"),
    ],
)
def test_a_class_is_found_by_its_name_or_one_like_it(wanted: str, found: str) -> None:
    assert find_class(wanted, CLASSES) == (found, [])


def test_the_nearest_are_named_where_none_fits() -> None:
    assert find_class("qwen3mo", CLASSES) == (None, ["Qwen3MoeForCausalLM", "Qwen3ForCausalLM"])
    assert find_class("Qwen3xForCausalLM", CLASSES)[1][0] == "Qwen3ForCausalLM"
    assert find_class("zzz", CLASSES) == (None, [])


def test_the_model_type_is_transformers_own_or_one_of_like_name_or_one_that_takes_any_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "model_types", lambda: ["qwen3", "kimi_linear"])
    assert find_model_type("Qwen3MoeForCausalLM", "qwen3_moe") == "qwen3_moe"
    assert find_model_type("KimiLinearForCausalLM", None) == "kimi_linear"
    assert find_model_type("BailingMoeForCausalLM", None) == "llama"


class Model(nn.Module):
    """Takes halves of a fused matrix by name, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(8, 4))
        self.norm = nn.Parameter(torch.empty(4))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if name in ("gate", "up"):
                first = 0 if name == "gate" else 4
                self.gate_up.data.narrow(0, first, 4).copy_(tensor.narrow(0, 0, 4))
            else:
                dict(self.named_parameters())[name].data.copy_(tensor)


def test_what_a_model_takes_as_a_whole() -> None:
    with torch.device("meta"):
        model = Model()
    found = taken_names(
        model,
        [("gate", (4, 4)), ("up", (8, 4)), ("gate_up", (8, 4)), ("norm", (4,)), ("norm", (5,)), ("other", (4,))],
    )
    assert found == {
        ("gate", (4, 4)): [ParameterUse("gate_up")],
        ("gate_up", (8, 4)): [ParameterUse("gate_up")],
        ("norm", (4,)): [ParameterUse("norm")],
    }, "up is a fused matrix of which half is taken, norm of 5 does not fit"


def test_the_aliases_are_those_of_the_converter() -> None:
    found = tensor_aliases()
    assert "model.layers.{bid}.self_attn.q_proj" in found["blk.{bid}.attn_q"]
    # One name for two tensors: the norm before the MLP.
    assert {"model.layers.{bid}.post_attention_layernorm", "model.layers.{bid}.pre_feedforward_layernorm"} <= set(
        found["blk.{bid}.ffn_norm"]
    )
    assert all(len(set(modules)) == len(modules) for modules in found.values())
