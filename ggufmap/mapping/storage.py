"""The storage plan: which vLLM layers hold their weights packed, in GGUF blocks, and which hold them dense, and why.

One decision per layer, since a fused layer (qkv, gate_up, a stack of experts) is one kernel call: packed only where no
rule of RULES objects. The rules read a trace; nothing here knows vLLM or an architecture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ggufmap.checkpoint.ggml_types import TYPES
from ggufmap.mapping.memory import dtype_bytes
from ggufmap.mapping.plan import (
    Assignment,
    Module,
    Packing,
    Parameter,
    ParameterUse,
    Plan,
    Role,
    StorageGroup,
    StoragePlan,
    TraceResult,
)
from ggufmap.mapping.transforms import KINDS


class Storage(StrEnum):
    """What the user asks for. `auto` packs where it can; `packed` insists that it can be done at all."""

    AUTO = "auto"
    PACKED = "packed"
    DENSE = "dense"


QWEIGHT = "qweight"
"""How a packed parameter is called (vllm-gguf-plugin 0.0.5, quantization/linear.py); in place of `weight`."""

_PLAIN = frozenset(type.name for type in TYPES.values() if type.block == 1)
_BY_NAME = {type.name: type for type in TYPES.values()}
_MAX_ELEMENTS = (1 << 31) - 1

# vLLM's layers whose weights are read by something else than their own forward pass, with who does.
_READ_ELSEWHERE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.kv_b_proj$"), "MLA absorbs it into its own matrices after loading"),
    (re.compile(r"\.indexer\."), "the sparse-attention indexer scores in the model's dtype"),
    (re.compile(r"\.conv1d$"), "it is the kernel of a convolution"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One checkpoint tensor of a layer and where it goes."""

    assignment: Assignment
    name: str
    use: ParameterUse
    types: tuple[str, ...]
    columns: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layer with quantised tensors, and what the trace knows of it."""

    role: Role
    path: str
    module: Module | None
    parts: tuple[Part, ...]
    parameters: Mapping[str, Parameter]
    rewritten: frozenset[str]
    packing: Packing
    ranks: int
    expert_parallel: bool

    @property
    def types(self) -> tuple[str, ...]:
        """The ggml types of its tensors, sorted, without repeats."""
        return tuple(sorted({type for part in self.parts for type in part.types}))


Rule = Callable[[Candidate], str | None]


def _plain_beside_quantised(layer: Candidate) -> str | None:
    plain = [type for type in layer.types if type in _PLAIN]
    return f"{', '.join(plain)} beside {_others(layer, plain)}: a layer is packed as a whole" if plain else None


def _others(layer: Candidate, known: Iterable[str]) -> str:
    return ", ".join(type for type in layer.types if type not in set(known))


def _read_elsewhere(layer: Candidate) -> str | None:
    return next((why for pattern, why in _READ_ELSEWHERE if pattern.search(layer.path)), None)


def _never_quantised(layer: Candidate) -> str | None:
    return "vLLM builds it without a quantisation method" if layer.module is None else layer.module.problem


def _computed(layer: Candidate) -> str | None:
    for part in layer.parts:
        if not KINDS[part.assignment.transform.name].moves_rows:
            return f"its values are computed ({part.assignment.transform})"
        if len(set(part.types)) > 1:
            return f"{part.name} is joined of {', '.join(dict.fromkeys(part.types))}"
    return None


def _rewritten(layer: Candidate) -> str | None:
    found = next((part.name for part in layer.parts if part.name in layer.rewritten), None)
    return None if found is None else f"the model's load_weights computes with {found}"


def _no_kernel(layer: Candidate) -> str | None:
    unknown = [type for type in layer.types if type not in layer.packing.types]
    return f"no kernel for {', '.join(unknown)}" if unknown else None


def _mixed(layer: Candidate) -> str | None:
    """Parts of a linear layer have types of their own; experts have one for gate and up, and one for down."""
    kind = None if layer.module is None else layer.module.kind
    for parameter in layer.parameters:
        types = {type for part in layer.parts if part.use.name == parameter for type in part.types}
        if len(types) > 1 and (kind != "linear" or _overlapping(layer, parameter)):
            return f"{', '.join(sorted(types))} in one {parameter.rpartition('.')[2]}"
    return None


def _overlapping(layer: Candidate, parameter: str) -> bool:
    return any(part.use.shard is None for part in layer.parts if part.use.name == parameter)


def _gateless(layer: Candidate) -> str | None:
    if layer.module is None or layer.module.kind != "experts":
        return None
    shards = {part.use.shard for part in layer.parts}
    return None if shards == {"w1", "w2", "w3"} else f"experts of {_listed(shards)}: gate, up and down are expected"


def _listed(shards: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, shards)))


def _expert_parallel(layer: Candidate) -> str | None:
    if layer.module is None or layer.module.kind != "experts" or not layer.expert_parallel:
        return None
    return "the packed kernels take no map of experts (expert parallelism)"


def _cut_blocks(layer: Candidate) -> str | None:
    for part in layer.parts:
        kept, block = part.use.columns or part.columns, _BY_NAME[part.types[0]].block
        if kept % block:
            return f"TP {layer.ranks} cuts a block: {part.columns} columns of {part.types[0]}, blocks of {block}"
    return None


def _too_large(layer: Candidate) -> str | None:
    largest = max(math.prod(parameter.shape) for parameter in layer.parameters.values())
    return f"{largest} elements on a rank: the kernels count to 2^31" if largest > _MAX_ELEMENTS else None


RULES: tuple[tuple[str, Rule], ...] = (
    ("read elsewhere", _read_elsewhere),
    ("not quantisable", _never_quantised),
    ("plain beside quantised", _plain_beside_quantised),
    ("computed values", _computed),
    ("rewritten by the model", _rewritten),
    ("no kernel", _no_kernel),
    ("gateless experts", _gateless),
    ("mixed types", _mixed),
    ("expert parallelism", _expert_parallel),
    ("cut blocks", _cut_blocks),
    ("too large", _too_large),
)
"""In this order; the first that objects gives the reason for a dense layer."""


def dense_plan(asked: Storage, note: str) -> StoragePlan:
    """Everything dense, for a reason that holds for the whole model."""
    return StoragePlan(asked.value, (), note)


def plan_storage(plan: Plan, trace: TraceResult, asked: Storage) -> StoragePlan:
    """Decide for every layer of the traced models that has quantised tensors. `trace` was asked about packing."""
    packing = trace.packing or Packing(problem="the trace was not asked")
    if packing.problem is not None:
        return dense_plan(asked, packing.problem)
    found = [layer for role in Role for layer in _candidates(plan, trace, role, packing)]
    reasons = {(layer.role, layer.path): _objection(layer) for layer in found}
    _spread(found, reasons)
    return StoragePlan(asked.value, tuple(_group(layer, reasons[layer.role, layer.path]) for layer in found))


def demoted(storage: StoragePlan, paths: Mapping[tuple[Role, str], str]) -> StoragePlan:
    """`storage` with these layers dense after all (by role and path, with the reason), and what shares a tensor."""
    groups = [
        replace(group, packed=False, reason=paths[group.role, group.module], nbytes=group.dense_nbytes, layers={})
        if group.packed and (group.role, group.module) in paths
        else group
        for group in storage.groups
    ]
    dense = {name: group.module for group in groups if not group.packed for name in group.tensors}
    shared = {
        (group.role, group.module): f"shares {name} with {dense[name]}"
        for group in groups
        if group.packed
        for name in group.tensors
        if name in dense
    }
    made = replace(storage, groups=tuple(groups))
    return demoted(made, shared) if shared else made


def packed_plan(plan: Plan, storage: StoragePlan) -> Plan:
    """`plan` under this storage: packed tensors go to `qweight`, as rows of bytes."""
    packed = storage.packed_tensors(Role.TARGET) | storage.packed_tensors(Role.DRAFT)
    return rename_packed(replace(plan, storage=storage), packed)


def rename_packed(plan: Plan, packed: frozenset[str]) -> Plan:
    """`plan` with the checkpoint tensors that are made of `packed` tensors as uint8 rows of a parameter `qweight`."""
    assignments = (_renamed(plan, a) if a.tensors[0] in packed else a for a in plan.assignments)
    return replace(plan, assignments=tuple(assignments))


def _renamed(plan: Plan, assignment: Assignment) -> Assignment:
    type = _BY_NAME[plan.model.tensors[assignment.tensors[0]].ggml_type]
    return replace(
        assignment,
        checkpoint=tuple(packed_name(name) for name in assignment.checkpoint),
        shapes=tuple((*shape[:-1], type.row_bytes(shape[-1])) for shape in assignment.shapes),
    )


def packed_name(name: str) -> str:
    """A checkpoint name whose last segment `weight` has become `qweight`; no other `weight` in it changes."""
    head, _, leaf = name.rpartition(".")
    return f"{head}.{QWEIGHT}" if leaf == "weight" else name


def _objection(layer: Candidate) -> str | None:
    return next((reason for _, rule in RULES if (reason := rule(layer)) is not None), None)


def _candidates(plan: Plan, trace: TraceResult, role: Role, packing: Packing) -> list[Candidate]:
    model = trace.model(role)
    if model is None:
        return []
    parts: dict[str, list[Part]] = {}
    for assignment in plan.assignments:
        types = tuple(plan.model.tensors[name].ggml_type for name in assignment.tensors)
        for name, shape in zip(assignment.checkpoint, assignment.shapes, strict=True):
            for use in model.uses.get(name, ()) if assignment.role is role and len(shape) >= 2 else ():
                path, _, leaf = use.name.rpartition(".")
                if leaf.endswith("weight"):
                    parts.setdefault(path, []).append(Part(assignment, name, use, types, shape[-1]))
    return [
        Candidate(
            role,
            path,
            model.modules.get(path),
            tuple(found),
            {part.use.name: model.parameters[part.use.name] for part in found},
            model.rewritten,
            packing,
            trace.tensor_parallel,
            trace.expert_parallel,
        )
        for path, found in parts.items()
        if any(type not in _PLAIN for part in found for type in part.types)
    ]


def _spread(found: list[Candidate], reasons: dict[tuple[Role, str], str | None]) -> None:
    """A tensor that feeds several layers is packed for all of them or for none."""
    while True:
        dense = {
            part.assignment.tensors[0]: layer.path
            for layer in found
            if reasons[layer.role, layer.path] is not None
            for part in layer.parts
        }
        shared = [
            (layer, name)
            for layer in found
            if reasons[layer.role, layer.path] is None
            for name in dict.fromkeys(part.assignment.tensors[0] for part in layer.parts)
            if name in dense
        ]
        if not shared:
            return
        for layer, name in shared:
            reasons[layer.role, layer.path] = f"shares {name} with {dense[name]}"


def _group(layer: Candidate, objection: str | None) -> StorageGroup:
    dense = sum(math.prod(p.shape) * dtype_bytes(p.dtype) for p in layer.parameters.values())
    tensors = tuple(dict.fromkeys(name for part in layer.parts for name in part.assignment.tensors))
    common = (layer.role, layer.path, tensors, layer.types)
    if objection is not None or layer.module is None:
        return StorageGroup(*common, False, objection or "", dense, dense)
    types = _types(layer)
    nbytes = sum(_packed_bytes(layer, name) for name in layer.parameters)
    return StorageGroup(*common, True, "", nbytes, dense, dict.fromkeys(layer.module.prefixes, types))


def _types(layer: Candidate) -> dict[str, str]:
    """Shard id as text -> ggml type. A tensor that holds several shards stands for each of them."""
    found: dict[str, str] = {}
    for part in layer.parts:
        shard = part.use.shard
        for one in shard if isinstance(shard, (list, tuple)) else (shard,):
            found["" if one is None else str(one)] = part.types[0]
    return found


def _packed_bytes(layer: Candidate, parameter: str) -> int:
    """Rows are as wide as those of the widest type among the parameter's parts."""
    *rows, columns = layer.parameters[parameter].shape
    types = {part.types[0] for part in layer.parts if part.use.name == parameter}
    return math.prod(rows) * max(_BY_NAME[type].row_bytes(columns) for type in types)
