"""The audit for people: what the file is, where its tensors go, what does not fit, what to do next.

Names come from the file: they are shown as text, never as markup, and control characters are escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ggufmap.errors import plural
from ggufmap.mapping.memory import CutTensor, cut_tensors, legal_sizes, model_bytes
from ggufmap.mapping.plan import ModelTrace, Plan, StorageGroup
from ggufmap.report.as_json import assignments, serve_line, summary
from ggufmap.report.patterns import counted, pattern, printable, size

_SHOWN = 12
_LEAST = 16
_ENDLESS = 100_000


def print_plan(
    console: Console,
    plan: Plan,
    *,
    config_source: str,
    assumed: Mapping[str, Any],
    templates: Sequence[Mapping[str, Any]] = (),
    serve_options: Sequence[str] = (),
) -> None:
    """Print the audit of `plan`; `serve_options` as in `plan_report`."""
    counts = summary(plan)
    _head(console, plan)
    _groups(console, plan)
    keys = ("mapped", "draft", "skipped", "unmapped", "missing", "mismatched", "phantom")
    _flow(console, [f"{key} {counts[key]}" for key in keys])
    _problems(console, plan)
    _phantoms(console, plan)
    _config(console, config_source, assumed)
    _memory(console, plan)
    _storage(console, plan)
    _templates(console, templates)
    _stock(console, plan)
    for warning in plan.warnings:
        _say(console, "warning", f"{warning.code} {warning.message}", "yellow")
    _verdict(console, plan, serve_options)


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


def _groups(console: Console, plan: Plan) -> None:
    """Assigned tensors by name pattern, the draft's after the target's: a table, or two lines each if narrow."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in sorted(assignments(plan), key=lambda entry: entry["role"] == "draft"):
        if entry["role"] != "skipped":
            groups.setdefault((entry["role"], pattern(entry["tensor"])), []).append(entry)
    traced = plan.trace is not None
    heads = (
        "tensors" if plan.inferred is None else "tensors (inferred)",
        "x",
        "ggml",
        "vLLM parameter" if traced else "checkpoint tensor",
        "transform",
        "storage",
    )
    rows = [_row(role, name, entries, traced) for (role, name), entries in groups.items()]
    table = Table(*heads, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    if Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum <= console.width:
        console.print(table)
        return
    console.print(Text(f"{heads[0]} -> {heads[3]}", style="bold"))
    for name, count, types, target, *rest in rows:
        _hang(console, f"{count:>5} x ", f"{name}  {types}")
        _hang(console, "        -> ", "  ".join(filter(None, (target, *rest))))
    console.print()


def _row(role: str, name: str, entries: list[dict[str, Any]], traced: bool) -> tuple[str, ...]:
    """The cells of one group."""
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
    return tuple(map(printable, cells))


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
            _say(console, kind, f"{name}  {reason}", "red")
        if len(found) > _SHOWN:
            _say(console, kind, f"... and {len(found) - _SHOWN} more (all of them with --json)", "red")


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
        _say(console, kind, f"{len(names)} x {shown}  {reason}" + (f", {size(stored)}" if stored else ""))


def _memory(console: Console, plan: Plan) -> None:
    """Bytes on the traced rank, and the sizes at which packed rows can be split."""
    trace = plan.trace
    if trace is None:
        return
    ranks = f" per rank at TP {trace.tensor_parallel}" if trace.tensor_parallel > 1 else ""
    ranks += " with EP" if trace.expert_parallel else ""
    draft = "" if trace.draft is None else f", draft {size(model_bytes(trace.draft))}"
    _say(console, "memory", f"target {size(model_bytes(trace.target))}{draft}{ranks}")
    if trace.tensor_parallel > 1:
        cut = cut_tensors(plan)
        sizes = " ".join(map(str, legal_sizes(cut)))
        _say(console, "blocks", f"rows of {len(cut)} quantised tensors are split; on block edges at TP {sizes}")
        for name, found in _by_pattern([t for t in cut if not t.legal(trace.tensor_parallel)]).items():
            t = found[0]
            text = f"TP {trace.tensor_parallel} cuts {len(found)} x {name}: {t.columns} columns, blocks of {t.block}"
            _say(console, "", f"{text}; they are dequantised")


def _storage(console: Console, plan: Plan) -> None:
    """What stays packed and what does not, by layer pattern and reason; bytes are those of one rank."""
    storage = plan.storage
    if storage is None:
        return
    packed = [group for group in storage.groups if group.packed]
    if not packed:
        why = storage.note or "no layer can hold its GGUF blocks"
        _say(console, "storage", f"dense: {why}")
    else:
        saved = f"{size(sum(g.nbytes for g in packed))} in place of {size(sum(g.dense_nbytes for g in packed))}"
        _say(console, "storage", f"{len(packed)} layers packed: {saved} per rank")
    rows: dict[tuple[str, str], list[StorageGroup]] = {}
    for group in storage.groups:
        reason = "packed" if group.packed else f"dense: {pattern(group.reason)}"
        rows.setdefault((("draft: " if group.role == "draft" else "") + pattern(group.module), reason), []).append(
            group
        )
    for (name, reason), groups in rows.items():
        types = counted(" + ".join(sorted(group.types)) for group in groups)
        amount = size(sum(group.nbytes for group in groups))
        _say(console, "", f"{len(groups)} x {name}  {types}, {amount}  {reason}")


def _by_pattern(tensors: list[CutTensor]) -> dict[str, list[CutTensor]]:
    groups: dict[str, list[CutTensor]] = {}
    for tensor in tensors:
        groups.setdefault(pattern(tensor.tensor), []).append(tensor)
    return groups


def _templates(console: Console, templates: Sequence[Mapping[str, Any]]) -> None:
    """Each chat template with its hash and what was found in it; red is what `serve` does not use unasked."""
    for template in templates:
        _say(console, "template", f"{template['key']}  {template['bytes']} bytes  sha256 {template['sha256']}")
        findings = template["findings"]
        for finding in findings[:_SHOWN]:
            text = f"{finding['kind']}, line {finding['line']}: {finding['text']}"
            _say(console, "", text, "red" if finding["refused"] else "")
        if len(findings) > _SHOWN:
            _say(console, "", f"... and {len(findings) - _SHOWN} more (all of them with --json)")


def _stock(console: Console, plan: Plan) -> None:
    """What gguf-py's own name map would have done, for comparison."""
    stock = plan.stock
    if stock is None:
        return
    counts = f"{stock.entries} entries, {len(stock.unmapped)} tensors unmapped, {len(stock.phantom)} entries phantom"
    _say(console, "stock", f"gguf-py {stock.gguf}'s own map: {counts}")
    for kind, names in (("unmapped", stock.unmapped), ("phantom", stock.phantom)):
        for name, count in Counter(map(pattern, names)).most_common(_SHOWN):
            _say(console, "", f"{kind} {count} x {name}")


def _config(console: Console, source: str, assumed: Mapping[str, Any]) -> None:
    _say(console, "config", f"from {'the header' if source == 'header' else source}")
    if assumed:
        values = ", ".join(f"{key}={value}" for key, value in assumed.items())
        _say(console, "assumed", f"{values}  (not in the header; the family's values)")


def _complete(model: ModelTrace) -> str:
    return f"{sum(p.complete for p in model.parameters.values())} of {len(model.parameters)}"


def _verdict(console: Console, plan: Plan, serve_options: Sequence[str]) -> None:
    console.print()
    if plan.inferred is not None:
        _hang(console, "", _inferred_verdict(plan), "bold red")
        return
    if not plan.ok:
        number = len(plan.unmapped) + len(plan.missing) + len(plan.mismatched)
        _hang(console, "", f"not ok: {plural(number, 'problem')}; this file is not served", "bold red")
        return
    proof = "every tensor has its place by the rows"
    if plan.trace is not None:
        filled = [f"{_complete(plan.trace.target)} target"]
        filled += [] if plan.trace.draft is None else [f"{_complete(plan.trace.draft)} draft"]
        proof = f"{' and '.join(filled)} parameters are filled, every element once"
    _hang(console, "", f"ok: {proof}", "bold green")
    if plan.trace is not None and plan.trace.draft is not None and plan.trace.draft.deferred:
        saved = ", ".join(f"{name} {size(count)}" for name, count in plan.trace.draft.deferred.items())
        console.print(Text(f"the draft shares what the file does not carry; not allocated: {saved}"))
    served = serve_line(plan, serve_options) or "ggufmap serve FILE, once it is downloaded"
    console.print(Text(printable(f"serve it: {served}")), soft_wrap=True)


def _inferred_verdict(plan: Plan) -> str:
    number = len(plan.problems())
    fits = plural(number, "problem") if number else "every name and shape fits"
    return f"not ok: {fits}, but the rows are inferred and no value is proven; not served without --force"


def _say(console: Console, kind: str, text: str, style: str = "") -> None:
    _hang(console, f"  {kind:<9} ", text, style)


def _flow(console: Console, items: Sequence[str]) -> None:
    """Print as many of `items` on a line as there is room for."""
    line = ""
    for item in items:
        if line and len(line) + len(item) + 5 > console.width:
            console.print(Text(line))
            line = ""
        line += f"{'   ' if line else '  '}{item}"
    console.print(Text(line))


def _hang(console: Console, head: str, text: str, style: str = "") -> None:
    """Print `text` behind `head`, its further lines below its first one; names that are too long are folded."""
    room = max(console.width - len(head), _LEAST)
    for line in Text(printable(text)).wrap(console, room, overflow="fold"):
        console.print(Text(f"{head}{line.plain.rstrip()}", style=style), soft_wrap=True)
        head = " " * len(head)
