"""What a traced plan costs each rank, and where tensor parallelism would cut quantised rows inside a block."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggufmap.checkpoint.ggml_types import TYPES
from ggufmap.mapping.plan import ModelTrace, Plan

_DTYPE_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
}
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_BLOCKS = {type.name: type.block for type in TYPES.values()}


@dataclass(frozen=True, slots=True)
class CutTensor:
    """A quantised tensor whose rows tensor parallelism splits: `columns` in blocks of `block`."""

    tensor: str
    ggml_type: str
    columns: int
    block: int

    def legal(self, ranks: int) -> bool:
        """Whether every rank's part ends on a block edge."""
        return self.columns % (ranks * self.block) == 0


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What one of `tensor_parallel` ranks holds, in bytes of weights; `problem` says why vLLM cannot be split so."""

    tensor_parallel: int
    target: int | None = None
    draft: int | None = None
    packed: int = 0
    """Bytes of `target` and `draft` that stay in GGUF blocks."""
    cut: int = 0
    """Quantised tensors of which a rank's part ends inside a block; they are dequantised."""
    problem: str | None = None


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a torch dtype. KeyError for an unknown one."""
    return _DTYPE_BYTES[dtype]


def model_bytes(model: ModelTrace) -> int:
    """Bytes of the model's parameters on the traced rank, as they were traced. KeyError for an unknown dtype."""
    return sum(math.prod(p.shape) * dtype_bytes(p.dtype) for p in model.parameters.values())


def cut_tensors(plan: Plan) -> list[CutTensor]:
    """The quantised tensors that the traced rank takes some columns of only; empty for one rank."""
    found = []
    for assignment in plan.assignments:
        model = None if plan.trace is None else plan.trace.model(assignment.role)
        uses = () if model is None else model.uses.get(assignment.checkpoint[0], ())
        if any(use.columns is not None for use in uses):
            for name in assignment.tensors:
                facts = plan.model.tensors[name]
                block = _BLOCKS.get(facts.ggml_type, 1)
                if block > 1:
                    found.append(CutTensor(name, facts.ggml_type, facts.shape[-1], block))
    return found


def legal_sizes(tensors: list[CutTensor]) -> list[int]:
    """The tensor-parallel sizes (powers of two) at which no block is cut: packed rows can be split there."""
    return [size for size in _SIZES if all(tensor.legal(size) for tensor in tensors)]


def rank_memory(plan: Plan) -> RankMemory | None:
    """The memory of the rank that was traced; None without a trace."""
    trace = plan.trace
    if trace is None:
        return None
    groups = () if plan.storage is None else plan.storage.groups
    return RankMemory(
        trace.tensor_parallel,
        model_bytes(trace.target),
        None if trace.draft is None else model_bytes(trace.draft),
        sum(group.nbytes for group in groups if group.packed),
        sum(not tensor.legal(trace.tensor_parallel) for tensor in cut_tensors(plan)),
    )
