"""The audit for people: what the file is, where its tensors go, what does not fit, what to do next.

Names come from the file: they are shown as text, never as markup, and control characters are escaped.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ggufmap.mapping.memory import CutTensor, cut_tensors, legal_sizes, model_bytes
from ggufmap.mapping.plan import ModelTrace, Plan, StorageGroup
from ggufmap.report.as_json import assignments, summary
from ggufmap.report.patterns import counted, pattern, printable, size

_SHOWN = 12


def print_plan(
    console: Console,
    plan: Plan,
    *,
    config_source: str,
    assumed: Mapping[str, Any],
    templates: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print the audit of `plan`."""
    counts = summary(plan)
    _head(console, plan)
    console.print(_groups(plan))
    keys = ("mapped", "draft", "skipped", "unmapped", "missing", "mismatched", "phantom")
    console.print(Text("  " + "   ".join(f"{key} {counts[key]}" for key in keys)))
    _problems(console, plan)
    _phantoms(console, plan)
    _config(console, config_source, assumed)
    _memory(console, plan)
    _storage(console, plan)
    _templates(console, templates)
    _stock(console, plan)
    for warning in plan.warnings:
        console.print(_line("warning", f"{warning.code} {warning.message}", "yellow"))
    _verdict(console, plan)


def _head(console: Console, plan: Plan) -> None:
    model = plan.model
    splits = f"{model.splits} splits - " if model.splits > 1 else ""
    draft = f" + {model.draft_blocks} draft" if model.draft_blocks else ""
    blocks = f"{model.blocks - model.draft_blocks} blocks{draft}"
    facts = f"{model.architecture} - {splits}{size(model.nbytes)} - {len(model.tensors)} tensors - {blocks}"
    console.print(Text(f"{printable(model.name)} - {printable(facts)}", style="bold"))
    if plan.inferred is not None:
        text = f"inferred: {plan.model.architecture} has no rows of its own; these are {plan.inferred.basis}"
        console.print(Text(printable(text), style="yellow"))
    if model.mmproj is not None:
        console.print(Text(f"with {printable(model.mmproj)} (v.*, mm.*)"))
    if plan.trace is None:
        console.print(Text(f"{plan.model_class} (not traced: by the rows alone)"))
    else:
        trace = plan.trace
        draft = "" if trace.draft is None else f", draft {trace.draft.class_name}"
        console.print(Text(f"vLLM {trace.vllm} on {trace.device}: {trace.target.class_name}{draft} (traced)"))
    console.print()


def _groups(plan: Plan) -> Table:
    """Assigned tensors, one row per name pattern; the draft's after the target's."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in sorted(assignments(plan), key=lambda entry: entry["role"] == "draft"):
        if entry["role"] != "skipped":
            groups.setdefault((entry["role"], pattern(entry["tensor"])), []).append(entry)
    traced = plan.trace is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("tensors" if plan.inferred is None else "tensors (inferred)", overflow="fold")
    table.add_column("x", justify="right")
    table.add_column("ggml", overflow="fold")
    table.add_column("vLLM parameter" if traced else "checkpoint tensor", overflow="fold")
    table.add_column("transform")
    table.add_column("storage")
    for (role, name), entries in groups.items():
        targets = dict.fromkeys(target for entry in entries for target in _targets(entry, traced))
        transforms = counted(entry["transform"] for entry in entries)
        cells = (
            name,
            str(len(entries)),
            counted(entry["ggml_type"] for entry in entries),
            ("draft: " if role == "draft" else "") + (", ".join(targets) or "-"),
            "" if transforms == "copy" else transforms,
            counted(entry["storage"] for entry in entries),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _targets(entry: dict[str, Any], traced: bool) -> list[str]:
    if not traced:
        return [pattern(name) for name in entry["checkpoint"]]
    return [
        pattern(use["name"]) + ("" if use["shard"] is None else f" [{use['shard']}]") for use in entry["parameters"]
    ]


def _problems(console: Console, plan: Plan) -> None:
    kinds = (
        ("unmapped", [(x.tensor, x.reason) for x in plan.unmapped]),
        ("missing", [(x.parameter, x.reason) for x in plan.missing]),
        ("mismatch", [(x.tensor, x.reason) for x in plan.mismatched]),
    )
    for kind, found in kinds:
        for name, reason in found[:_SHOWN]:
            console.print(_line(kind, f"{name}  {reason}", "red"))
        if len(found) > _SHOWN:
            console.print(_line(kind, f"... and {len(found) - _SHOWN} more (all of them with --json)", "red"))


def _phantoms(console: Console, plan: Plan) -> None:
    """Skipped tensors and phantoms by reason; the pattern and the count tell the rest."""
    found = [("skipped", x.reason, x.tensor) for x in plan.skipped]
    found += [("phantom", x.reason, x.tensor) for x in plan.phantom]
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, reason, tensor in found:
        groups.setdefault((kind, pattern(reason)), []).append(tensor)
    for (kind, reason), names in groups.items():
        stored = sum(plan.model.tensors[name].nbytes for name in names if name in plan.model.tensors)
        shown = ", ".join(dict.fromkeys(map(pattern, names)))
        console.print(_line(kind, f"{len(names)} x {shown}  {reason}" + (f", {size(stored)}" if stored else "")))


def _memory(console: Console, plan: Plan) -> None:
    """Bytes on the traced rank, and the sizes at which packed rows can be split."""
    trace = plan.trace
    if trace is None:
        return
    ranks = f" per rank at TP {trace.tensor_parallel}" if trace.tensor_parallel > 1 else ""
    ranks += " with EP" if trace.expert_parallel else ""
    draft = "" if trace.draft is None else f", draft {size(model_bytes(trace.draft))}"
    console.print(_line("memory", f"target {size(model_bytes(trace.target))}{draft}{ranks}"))
    if trace.tensor_parallel > 1:
        cut = cut_tensors(plan)
        sizes = " ".join(map(str, legal_sizes(cut)))
        console.print(_line("blocks", f"rows of {len(cut)} quantised tensors are split; on block edges at TP {sizes}"))
        for name, found in _by_pattern([t for t in cut if not t.legal(trace.tensor_parallel)]).items():
            t = found[0]
            text = f"TP {trace.tensor_parallel} cuts {len(found)} x {name}: {t.columns} columns, blocks of {t.block}"
            console.print(_line("", f"{text}; they are dequantised"))


def _storage(console: Console, plan: Plan) -> None:
    """What stays packed and what does not, by layer pattern and reason; bytes are those of one rank."""
    storage = plan.storage
    if storage is None:
        return
    packed = [group for group in storage.groups if group.packed]
    if not packed:
        why = storage.note or "no layer can hold its GGUF blocks"
        console.print(_line("storage", f"dense: {why}"))
    else:
        saved = f"{size(sum(g.nbytes for g in packed))} in place of {size(sum(g.dense_nbytes for g in packed))}"
        console.print(_line("storage", f"{len(packed)} layers packed: {saved} per rank"))
    rows: dict[tuple[str, str], list[StorageGroup]] = {}
    for group in storage.groups:
        reason = "packed" if group.packed else f"dense: {pattern(group.reason)}"
        rows.setdefault((("draft: " if group.role == "draft" else "") + pattern(group.module), reason), []).append(
            group
        )
    for (name, reason), groups in rows.items():
        types = counted(" + ".join(sorted(group.types)) for group in groups)
        amount = size(sum(group.nbytes for group in groups))
        console.print(_line("", f"{len(groups)} x {name}  {types}, {amount}  {reason}"))


def _by_pattern(tensors: list[CutTensor]) -> dict[str, list[CutTensor]]:
    groups: dict[str, list[CutTensor]] = {}
    for tensor in tensors:
        groups.setdefault(pattern(tensor.tensor), []).append(tensor)
    return groups


def _templates(console: Console, templates: Sequence[Mapping[str, Any]]) -> None:
    """Each chat template with its hash and what was found in it; red is what `serve` does not use unasked."""
    for template in templates:
        console.print(_line("template", f"{template['key']}  {template['bytes']} bytes  sha256 {template['sha256']}"))
        findings = template["findings"]
        for finding in findings[:_SHOWN]:
            text = f"{finding['kind']}, line {finding['line']}: {finding['text']}"
            console.print(_line("", text, "red" if finding["refused"] else ""))
        if len(findings) > _SHOWN:
            console.print(_line("", f"... and {len(findings) - _SHOWN} more (all of them with --json)"))


def _stock(console: Console, plan: Plan) -> None:
    """What gguf-py's own name map would have done, for comparison."""
    stock = plan.stock
    if stock is None:
        return
    counts = f"{stock.entries} entries, {len(stock.unmapped)} tensors unmapped, {len(stock.phantom)} entries phantom"
    console.print(_line("stock", f"gguf-py {stock.gguf}'s own map: {counts}"))
    for kind, names in (("unmapped", stock.unmapped), ("phantom", stock.phantom)):
        for name, count in Counter(map(pattern, names)).most_common(_SHOWN):
            console.print(_line("", f"{kind} {count} x {name}"))


def _config(console: Console, source: str, assumed: Mapping[str, Any]) -> None:
    console.print(_line("config", f"from {'the header' if source == 'header' else source}"))
    if assumed:
        values = ", ".join(f"{key}={value}" for key, value in assumed.items())
        console.print(_line("assumed", f"{values}  (not in the header; the family's values)"))


def _complete(model: ModelTrace) -> str:
    return f"{sum(p.complete for p in model.parameters.values())} of {len(model.parameters)}"


def _verdict(console: Console, plan: Plan) -> None:
    console.print()
    if plan.inferred is not None:
        console.print(Text(_inferred_verdict(plan), style="bold red"))
        return
    if not plan.ok:
        number = len(plan.unmapped) + len(plan.missing) + len(plan.mismatched)
        console.print(Text(f"not ok: {number} problem{'s' * (number != 1)}; this file is not served", style="bold red"))
        return
    proof = "every tensor has its place by the rows"
    if plan.trace is not None:
        filled = [f"{_complete(plan.trace.target)} target"]
        filled += [] if plan.trace.draft is None else [f"{_complete(plan.trace.draft)} draft"]
        proof = f"{' and '.join(filled)} parameters are filled, every element once"
    console.print(Text(f"ok: {proof}", style="bold green"))
    if plan.trace is not None and plan.trace.draft is not None and plan.trace.draft.deferred:
        saved = ", ".join(f"{name} {size(count)}" for name, count in plan.trace.draft.deferred.items())
        console.print(Text(f"the draft shares what the file does not carry; not allocated: {saved}"))
    console.print(Text(printable(f"serve it: ggufmap serve {shlex.quote(plan.model.path)}")))


def _inferred_verdict(plan: Plan) -> str:
    number = len(plan.problems())
    fits = f"{number} problem{'s' * (number != 1)}" if number else "every name and shape fits"
    return f"not ok: {fits}, but the rows are inferred and no value is proven; not served without --force"


def _line(kind: str, text: str, style: str = "") -> Text:
    return Text(f"  {kind:<9} {printable(text)}", style=style)
