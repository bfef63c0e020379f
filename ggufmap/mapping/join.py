"""Join a Plan with the trace of the real vLLM models: parameters in place of expectations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ggufmap.mapping.plan import Mismatched, Missing, ModelTrace, Plan, Role, TraceResult, Unmapped


def join_trace(plan: Plan, trace: TraceResult) -> Plan:
    """`plan` as vLLM sees it: unused names become unmapped, refused ones mismatched, unfilled parameters missing.

    A name that vLLM gives to another model than the rows do is a mismatch, whatever its shape.
    """
    origin = {name: a.tensors[0] for a in plan.assignments for name, _ in a.outputs}
    unmapped: list[Unmapped] = []
    mismatched = list(_misrouted(plan, trace))
    missing: list[Missing] = []
    for role in Role:
        model = trace.model(role)
        if model is None:
            continue
        unmapped += [Unmapped(origin[name], _why_unused(model, name, why)) for name, why in model.unused.items()]
        mismatched += [Mismatched(origin[name], reason) for name, reason in model.refused.items()]
        missing += [
            Missing(name, role, parameter.problem)
            for name, parameter in model.parameters.items()
            if parameter.problem is not None
        ]
    return replace(
        plan,
        unmapped=plan.unmapped + tuple(dict.fromkeys(unmapped)),
        mismatched=plan.mismatched + tuple(dict.fromkeys(mismatched)),
        missing=plan.missing + tuple(missing),
        trace=trace,
    )


def _why_unused(model: ModelTrace, name: str, why: str) -> str:
    return f"{model.class_name} takes nothing from {name}: {why}"


def _misrouted(plan: Plan, trace: TraceResult) -> Iterator[Mismatched]:
    """Assignments whose role is not the one that vLLM gives them (see `target/trace.py`, _draft_names)."""
    for assignment in plan.assignments:
        name = assignment.checkpoint[0]
        found = Role.DRAFT if name in trace.draft_names else Role.TARGET
        if found is not assignment.role:
            yield Mismatched(assignment.tensors[0], f"{name} is routed to the {assignment.role}, vLLM says the {found}")
