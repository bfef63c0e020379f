"""Checks of the model itself: does the mapping hold, do the draft's flags arrive, can weights stay packed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ggufmap.doctor.facts import Facts
from ggufmap.doctor.finding import Finding, note, ok, problem, warning
from ggufmap.serving.preflight import lost_flags


def mapping(facts: Facts) -> Iterator[Finding]:
    """Whether the audit is clean."""
    if facts.model is None:
        return
    plan, untraced = facts.model.found.plan, facts.model.untraced
    if plan.inferred is not None:
        found = f"the family {plan.model.architecture!r} has no rows; inferred ones are never served unasked"
        yield problem(
            "mapping",
            found,
            "see docs/adding-an-architecture.md; `ggufmap audit --rows FILE` writes rows to start from",
        )
    elif not plan.ok:
        found = f"problems: {len(plan.problems())}, the first: {plan.problems()[0]}"
        yield problem("mapping", found, "`ggufmap audit` lists them all")
    elif untraced is not None:
        found = f"fits by the rows alone; not traced: {untraced.why}"
        # A vLLM that is not usable is a problem of its own above; here it is one that cannot do this model.
        failed = partial(problem, lacking=True) if facts.environment.usable else note
        yield failed("mapping", found, untraced.remedy)
    else:
        trace = plan.trace
        classes = [] if trace is None else [part.class_name for part in (trace.target, trace.draft) if part is not None]
        found = f"all {len(plan.model.tensors)} tensors have their place, traced through vLLM's {' and '.join(classes)}"
        yield ok("mapping", found)


def draft(facts: Facts) -> Iterator[Finding]:
    """Whether vLLM builds the draft, and whether its override carries the flags to the draft's config."""
    if facts.model is None or not facts.model.found.plan.model.draft_blocks:
        return
    found, trace = facts.model.found, facts.model.found.plan.trace
    if trace is None:
        yield note("draft", "the file has one; not traced", "the findings above say what vLLM lacks")
        return
    if trace.draft_error is not None:
        yield warning(
            "draft",
            f"this vLLM cannot build it, so its blocks are not used: {trace.draft_error}",
            "another vLLM version: docs/vllm-versions.md",
        )
        return
    lost = lost_flags(found.plan, found.config)
    for key, value in trace.draft_flags.items():
        if key in lost:
            remedy = (
                "`ggufmap serve` passes it explicitly; for `vllm serve` alone: `ggufmap patch apply`, or "
                f"--speculative-config '{{..., \"{key}\": {str(lost[key]).lower()}}}'"
            )
            yield warning(
                "draft", f"vLLM's override loses {key}={lost[key]!r}: the draft's config says {value!r}", remedy
            )
        else:
            yield ok("draft", f"vLLM's override carries {key}={value!r} to the draft's config")
    if not trace.draft_flags:
        yield ok("draft", "vLLM builds it; this family has no flag that must reach its config")


def storage(facts: Facts) -> Iterator[Finding]:
    """Whether weights stay in GGUF blocks, and if none does, why."""
    plan = None if facts.model is None else facts.model.found.plan
    if plan is None or plan.trace is None or plan.storage is None:
        return
    packed = [group for group in plan.storage.groups if group.packed]
    if packed:
        yield ok("storage", f"{len(packed)} of {len(plan.storage.groups)} quantised layers stay packed")
        return
    problem_here = None if plan.trace.packing is None else plan.trace.packing.problem
    why = problem_here or plan.storage.note or "no layer can hold its GGUF blocks"
    if problem_here is not None and facts.environment.platform == "cuda":
        yield note(
            "storage",
            f"dense: {why}",
            "pip install 'vllm-gguf-plugin>=0.0.4' keeps weights in GGUF blocks (docs/storage.md)",
        )
    else:
        yield note("storage", f"dense: {why}")
