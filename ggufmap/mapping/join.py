"""Join a Plan with the trace of the real vLLM model: parameters in place of expectations."""

from __future__ import annotations

from dataclasses import replace

from ggufmap.mapping.plan import Mismatched, Missing, Plan, Role, TraceResult, Unmapped


def join_trace(plan: Plan, trace: TraceResult) -> Plan:
    """`plan` as vLLM sees it: unused names become unmapped, refused ones mismatched, unfilled parameters missing.

    A checkpoint tensor that the rows miss keeps its reason when the trace finds its parameter unfilled too.
    """
    origin = {name: a.tensors[0] for a in plan.assignments for name in a.checkpoint}
    unmapped = tuple(
        Unmapped(origin[name], f"{trace.model_class} takes nothing from {name}: {reason}")
        for name, reason in trace.unused.items()
    )
    mismatched = tuple(Mismatched(origin[name], reason) for name, reason in trace.refused.items())
    missing = tuple(
        Missing(name, Role.TARGET, parameter.problem)
        for name, parameter in trace.parameters.items()
        if parameter.problem is not None
    )
    return replace(
        plan,
        model_class=trace.model_class,
        unmapped=plan.unmapped + unmapped,
        mismatched=plan.mismatched + mismatched,
        missing=plan.missing + missing,
        trace=trace,
    )
