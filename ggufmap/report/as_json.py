"""The JSON report, schema 1 (docs/architecture.md). Additions keep the number; removals and changes raise it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ggufmap.mapping.memory import RankMemory, cut_tensors, legal_sizes, model_bytes, rank_memory
from ggufmap.mapping.plan import Assignment, ModelTrace, ParameterUse, Plan, Role, StockMap, StoragePlan, TraceResult
from ggufmap.report.remedies import remedy, warning_remedy

SCHEMA = 1


def plan_report(
    plan: Plan,
    *,
    config_source: str,
    assumed: Mapping[str, Any],
    templates: Sequence[Mapping[str, Any]] = (),
    header: Mapping[str, Any] | None = None,
    sizes: Sequence[RankMemory] = (),
    serve_options: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole report of one plan, ready for json.dumps.

    `header` are the header's keys to show, `sizes` the memory of ranks beside the traced one, `serve_options` what
    `ggufmap serve` needs beside the file to load it as it was audited.
    """
    model = plan.model
    return {
        "schema": SCHEMA,
        "ok": plan.ok,
        "model": {
            "path": model.path,
            "architecture": model.architecture,
            "name": model.name,
            "splits": model.splits,
            "bytes": model.nbytes,
            "tensors": len(model.tensors),
            "blocks": model.blocks,
            "draft_blocks": model.draft_blocks,
            "mmproj": model.mmproj,
        },
        "target": _target(plan),
        "header": dict(header or {}),
        "config": {"source": config_source, "assumed": dict(assumed)},
        "summary": summary(plan),
        "assignments": assignments(plan),
        "unmapped": [_problem(plan, "unmapped", x.tensor, x.reason) for x in plan.unmapped],
        "missing": [
            {
                "parameter": x.parameter,
                "role": x.role.value,
                "reason": x.reason,
                "remedy": remedy("missing", x.reason),
            }
            for x in plan.missing
        ],
        "phantom": [{"tensor": x.tensor, "checkpoint": list(x.checkpoint), "reason": x.reason} for x in plan.phantom],
        "mismatched": [_problem(plan, "mismatched", x.tensor, x.reason) for x in plan.mismatched],
        "templates": [dict(template) for template in templates],
        "warnings": [{"code": x.code, "message": x.message, "remedy": warning_remedy(x.code)} for x in plan.warnings],
        "stock": None if plan.stock is None else _stock(plan.stock),
        "inferred": None if plan.inferred is None else {"basis": plan.inferred.basis, "rows": plan.inferred.rows},
        "storage": None if plan.storage is None else _storage(plan.storage),
        "memory": _memory(plan, sizes),
        "serve": serve_line(plan, serve_options),
    }


def summary(plan: Plan) -> dict[str, int | None]:
    """Counts; the parameter counts are null when the plan was not traced."""
    bad = {x.tensor for x in plan.unmapped} | {x.tensor for x in plan.mismatched}
    placed = [(name, a.role.value) for a in plan.assignments for name in a.tensors if name not in bad]
    parameters = None if plan.trace is None else [p for model in _models(plan) for p in model.parameters.values()]
    return {
        "tensors": len(plan.model.tensors),
        "mapped": sum(role == "target" for _, role in placed),
        "draft": sum(role == "draft" for _, role in placed),
        "skipped": len(plan.skipped),
        "unmapped": len(plan.unmapped),
        "missing": len(plan.missing),
        "phantom": len(plan.phantom),
        "mismatched": len(plan.mismatched),
        "parameters": None if parameters is None else len(parameters),
        "parameters_complete": None if parameters is None else sum(p.complete for p in parameters),
    }


def assignments(plan: Plan) -> list[dict[str, Any]]:
    """One entry per tensor that is assigned or skipped, in file order."""
    storage = plan.storage
    packed = {} if storage is None else {role: storage.packed_tensors(role) for role in Role}
    entries = {name: _assigned(plan, a, name, packed) for a in plan.assignments for name in a.tensors}
    entries.update((x.tensor, _entry(plan, x.tensor, "skipped", None, None, [], [], x.reason)) for x in plan.skipped)
    return [entries[name] for name in plan.model.tensors if name in entries]


def _assigned(plan: Plan, assignment: Assignment, name: str, packed: Mapping[Role, frozenset[str]]) -> dict[str, Any]:
    model = None if plan.trace is None else plan.trace.model(assignment.role)
    uses = {} if model is None else model.uses
    parameters = [_use(use, no) for no, target in enumerate(assignment.checkpoint) for use in uses.get(target, ())]
    checkpoint = list(assignment.checkpoint)
    storage = "packed" if name in packed.get(assignment.role, ()) else "dense"
    return _entry(plan, name, assignment.role.value, str(assignment.transform), storage, checkpoint, parameters, None)


def _entry(
    plan: Plan,
    name: str,
    role: str,
    transform: str | None,
    storage: str | None,
    checkpoint: list[str],
    parameters: list[dict[str, Any]],
    reason: str | None,
) -> dict[str, Any]:
    facts = plan.model.tensors[name]
    return {
        "tensor": name,
        "inferred": plan.inferred is not None,
        "ggml_type": facts.ggml_type,
        "shape": list(facts.shape),
        "bytes": facts.nbytes,
        "role": role,
        "transform": transform,
        "storage": storage,
        "checkpoint": checkpoint,
        "parameters": parameters,
        "reason": reason,
    }


def _storage(storage: StoragePlan) -> dict[str, Any]:
    return {
        "asked": storage.asked,
        "note": storage.note,
        "groups": [
            {
                "role": group.role.value,
                "layer": group.module,
                "tensors": list(group.tensors),
                "types": list(group.types),
                "storage": "packed" if group.packed else "dense",
                "reason": group.reason,
                "bytes_per_rank": group.nbytes,
                "dense_bytes_per_rank": group.dense_nbytes,
            }
            for group in storage.groups
        ],
    }


def _use(use: ParameterUse, checkpoint: int) -> dict[str, Any]:
    return {"name": use.name, "shard": use.shard, "experts": use.expert, "checkpoint": checkpoint}


def _problem(plan: Plan, kind: str, name: str, reason: str) -> dict[str, Any]:
    facts = plan.model.tensors[name]
    return {
        "tensor": name,
        "ggml_type": facts.ggml_type,
        "shape": list(facts.shape),
        "bytes": facts.nbytes,
        "reason": reason,
        "remedy": remedy(kind, reason),
    }


def _memory(plan: Plan, sizes: Sequence[RankMemory]) -> list[dict[str, Any]]:
    """By size, the traced one among them."""
    traced = rank_memory(plan)
    found = {one.tensor_parallel: one for one in (*sizes, *(() if traced is None else (traced,)))}
    return [asdict(found[ranks]) for ranks in sorted(found)]


def serve_line(plan: Plan, options: Sequence[str]) -> str | None:
    """The command that serves the file as it was audited; None when it cannot."""
    if not (plan.ok and plan.model.at_hand):
        return None
    command = ["ggufmap", "serve", plan.model.path, *options]
    if plan.trace is not None and plan.trace.tensor_parallel > 1:
        command += ["--", "--tensor-parallel-size", str(plan.trace.tensor_parallel)]
        command += ["--enable-expert-parallel"] if plan.trace.expert_parallel else []
    return shlex.join(command)


def _stock(stock: StockMap) -> dict[str, Any]:
    return {
        "gguf": stock.gguf,
        "entries": stock.entries,
        "unmapped": list(stock.unmapped),
        "phantom": list(stock.phantom),
    }


def _models(plan: Plan) -> list[ModelTrace]:
    return [] if plan.trace is None else [m for m in (plan.trace.target, plan.trace.draft) if m is not None]


def _target(plan: Plan) -> dict[str, Any]:
    trace = plan.trace
    return {
        "vllm": None if trace is None else trace.vllm,
        "device": None if trace is None else trace.device,
        "tensor_parallel": 1 if trace is None else trace.tensor_parallel,
        "model_class": plan.model_class if trace is None else trace.target.model_class,
        "draft_class": None if trace is None or trace.draft is None else trace.draft.model_class,
        "draft_error": None if trace is None else trace.draft_error,
        "draft_flags": {} if trace is None else dict(trace.draft_flags),
        "deferred": {} if trace is None or trace.draft is None else dict(trace.draft.deferred),
        "traced": trace is not None,
        "expert_parallel": trace is not None and trace.expert_parallel,
        "bytes_per_rank": None if trace is None else _bytes(trace),
        "block_edges": _edges(plan),
    }


def _bytes(trace: TraceResult) -> dict[str, int]:
    found = {"target": model_bytes(trace.target)}
    return found if trace.draft is None else {**found, "draft": model_bytes(trace.draft)}


def _edges(plan: Plan) -> dict[str, Any] | None:
    """Only a trace of several ranks shows which rows tensor parallelism cuts."""
    if plan.trace is None or plan.trace.tensor_parallel == 1:
        return None
    cut = cut_tensors(plan)
    off = [t for t in cut if not t.legal(plan.trace.tensor_parallel)]
    return {
        "legal_tensor_parallel": legal_sizes(cut),
        "off_edge": [
            {"tensor": t.tensor, "ggml_type": t.ggml_type, "columns": t.columns, "block": t.block} for t in off
        ],
    }
