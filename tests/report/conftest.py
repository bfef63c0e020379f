"""Plans to report on: a good one, and one with every kind of problem and hostile names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Plan, join_trace, resolve
from ggufmap.mapping.plan import ModelTrace, Parameter, ParameterUse, TraceResult, Warned

HOSTILE = ("\x1b[31mred\x1b[0m", "[red]bold[/red]", "[/]", "line\nbreak", "bell\x07", "\u202ereversed")


def _plan(path: Path) -> Plan:
    with open_checkpoint(path) as checkpoint:
        return resolve(checkpoint, find_architecture("llama", "m.gguf"))


@pytest.fixture
def good(tmp_path: Path) -> Plan:
    tensors = [*small.llama_tensors(), small.tensor("rope_freqs.weight", 8)]
    return _plan(small.write_llama(tmp_path / "m.gguf", tensors=tensors))


@pytest.fixture
def bad(tmp_path: Path) -> Plan:
    """Unmapped, missing and mismatched at once; names that would like to be something else."""
    metadata = small.llama_metadata() | {"general.name": (gb.STRING, "\x1b]0;title\x07[red]name")}
    tensors = small.without(small.llama_tensors(), "output_norm.weight")
    tensors = small.replaced(tensors, TensorSpec("blk.1.attn_v.weight", (64, 32), 200, bytes(2048)))
    tensors += [small.tensor(name, 4) for name in HOSTILE]
    found = _plan(small.write_llama(tmp_path / "m.gguf", metadata, tensors))
    return replace(found, warnings=(Warned("W103", "a [bold]warning\x1b[1m"),))


@pytest.fixture
def traced(good: Plan) -> Plan:
    """The good plan with a trace: all parameters but one are filled."""
    names = [name for assignment in good.assignments for name in assignment.checkpoint]
    qkv = "model.layers.0.self_attn.qkv_proj.weight"
    uses = {name: (ParameterUse(name),) for name in names}
    uses |= {f"model.layers.0.self_attn.{x}_proj.weight": (ParameterUse(qkv, x),) for x in "qkv"}
    parameters = {use.name: Parameter((1,), "bfloat16", 1) for found in uses.values() for use in found}
    model = ModelTrace("vllm.models.llama.LlamaForCausalLM", parameters, uses, {}, {}, {})
    return join_trace(good, TraceResult("0.32.0", "cpu", model))
