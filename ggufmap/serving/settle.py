"""Settle where weights live: ask the trace what can be packed, decide, and trace again what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ggufmap.errors import GgufmapError, MissingDependencyError, UsageError
from ggufmap.mapping import Plan, Role, join_trace
from ggufmap.mapping.plan import StoragePlan, TraceResult
from ggufmap.mapping.storage import Storage, demoted, dense_plan, packed_plan, plan_storage
from ggufmap.serving.stages import stage
from ggufmap.target.client import trace
from ggufmap.target.devices import World

_ATTEMPTS = 4
_UNTRACED = "Leave out --offline (and install vLLM where there is none), or take --storage auto."


def settle(
    plan: Plan,
    config: Mapping[str, object],
    flags: Iterable[str],
    world: World,
    asked: Storage,
    online: str | None = None,
) -> Plan:
    """`plan` with its storage and the trace of the models as they will be loaded.

    `online` is the quantisation that vLLM itself does at load, which needs dense weights. A layer that vLLM cannot fill
    packed becomes dense, with the reason. Raises UsageError when packed weights are asked for and none can be.
    """
    flags = list(flags)
    if asked is Storage.DENSE or online is not None:
        if asked is Storage.PACKED:
            raise UsageError(f"--storage packed: {_quantises(online)}", hint="Leave one of the two out.")
        note = "asked for" if online is None else _quantises(online)
        found = _trace("dense", plan, config, flags, world)
        return replace(join_trace(plan, found), storage=dense_plan(asked, note))
    dense = _trace("dense, and what could be packed", plan, config, flags, world, ask_packing=True)
    storage = plan_storage(plan, dense, asked)
    for _ in range(_ATTEMPTS):
        if not any(group.packed for group in storage.groups):
            break
        candidate = packed_plan(plan, storage)
        try:
            found = _trace("packed", candidate, config, flags, world)
        except MissingDependencyError as e:
            storage = _without(storage, e.message.strip().splitlines()[-1])
            break
        problems = _problems(candidate, found)
        if not problems:
            return join_trace(candidate, found)
        storage = demoted(storage, problems)
    else:
        storage = _without(storage, "vLLM does not fill it packed")
    if asked is Storage.PACKED:
        raise _nothing_packed(storage)
    return replace(join_trace(plan, dense), storage=storage)


def _trace(
    what: str, plan: Plan, config: Mapping[str, object], flags: list[str], world: World, *, ask_packing: bool = False
) -> TraceResult:
    where = f"{world.device or 'this machine'}, rank 0 of {world.tensor_parallel}"
    with stage(f"vLLM's {plan.model_class} on {where}, {what}"):
        return trace(plan, config, flags, world, ask_packing=ask_packing)


def _nothing_packed(storage: StoragePlan) -> GgufmapError:
    """The environment's fault if it says so, else the file's."""
    kind = MissingDependencyError if storage.note else UsageError
    why = storage.note or next((group.reason for group in storage.groups), "the file has no quantised tensors")
    return kind(f"--storage packed: nothing can be packed: {why}", hint="--storage auto falls back to dense.")


def unsettled(asked: Storage) -> StoragePlan:
    """Without a trace: dense. Raises UsageError when packed weights are asked for."""
    if asked is Storage.PACKED:
        raise UsageError("--storage packed needs a trace: vLLM's layers decide what can be packed", hint=_UNTRACED)
    return dense_plan(asked, "asked for" if asked is Storage.DENSE else "not traced")


def _quantises(method: str | None) -> str:
    return f"vLLM quantises dense weights at load (--quantization {method})"


def _without(storage: StoragePlan, reason: str) -> StoragePlan:
    return demoted(storage, {(group.role, group.module): reason for group in storage.groups if group.packed})


def _problems(plan: Plan, found: TraceResult) -> dict[tuple[Role, str], str]:
    """The packed layers that the model does not fill as it should, and why."""
    problems: dict[tuple[Role, str], str] = {}
    storage = plan.storage or StoragePlan("")
    packed = {(group.role, group.module): group for group in storage.groups if group.packed}
    for role in Role:
        model = found.model(role)
        if model is None:
            continue
        for name, parameter in model.parameters.items():
            key = (role, name.rpartition(".")[0])
            if key in packed and parameter.problem is not None:
                problems[key] = f"vLLM does not fill it packed: {parameter.problem}"
        lost = {**model.unused, **model.refused}
        for assignment in plan.assignments:
            gone = [name for name in assignment.checkpoint if name in lost]
            if gone and assignment.tensors[0] in storage.packed_tensors(role):
                owners = [key for key, group in packed.items() if assignment.tensors[0] in group.tensors]
                problems.update(dict.fromkeys(owners, f"vLLM does not take {gone[0]}: {lost[gone[0]]}"))
    return problems
