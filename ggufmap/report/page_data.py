"""The JSON report as the HTML page takes it: grouped for reading, and written short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ggufmap.report.page_blocks import matrix, part_of, place
from ggufmap.report.page_runs import pack_names, pack_uses
from ggufmap.report.patterns import counted, pattern, size
from ggufmap.report.remedies import remedy

_KINDS = (("missing", "parameter"), ("unmapped", "tensor"), ("mismatched", "tensor"))
"""Kinds of problem in the order they are read, with the key of the name."""


class _Numbers:
    """Texts that repeat, as numbers into one list."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, text: str | None) -> int:
        return -1 if text is None else self._known.setdefault(text, len(self._known))

    @property
    def texts(self) -> list[str]:
        return list(self._known)


def page_data(report: Mapping[str, Any]) -> dict[str, Any]:
    """What `page/*.js` shows of `report` (docs/report.md): plain JSON, no markup."""
    tensors = list(_tensors(report))
    blocks = matrix(tensors, report)
    return {
        "ok": report["ok"],
        "name": report["model"]["name"],
        "path": report["model"]["path"],
        "verdict": verdict(report),
        "facts": [[label, value] for label, value in _facts(report) if value],
        "summary": report["summary"],
        "traced": report["target"]["traced"],
        "serve": report["serve"],
        "problems": list(_problems(report)),
        "warnings": report["warnings"],
        "left": list(_left(report)),
        "memory": report["memory"],
        "shared": report["target"]["deferred"],
        "edges": report["target"]["block_edges"],
        "ranks": report["target"]["tensor_parallel"],
        "storage": None if report["storage"] is None else _storage(report["storage"]),
        "config": report["config"],
        "header": report["header"],
        "templates": report["templates"],
        "stock": report["stock"],
        "rows": None if report["inferred"] is None else report["inferred"]["rows"],
        "blocks": blocks,
        **_table(tensors, blocks),
    }


def verdict(report: Mapping[str, Any]) -> str:
    """The outcome in a sentence."""
    counts = report["summary"]
    number = sum(counts[kind] for kind, _ in _KINDS)
    if report["inferred"] is not None:
        return "The rows are inferred and no value is proven: not served without --force."
    if number:
        return f"{number} problem{'s' * (number != 1)}: this file is not served."
    if counts["parameters"] is None:
        return "Every tensor has its place by the rows. Not traced through vLLM."
    done, all_ = counts["parameters_complete"], counts["parameters"]
    return f"{done:,} of {all_:,} vLLM parameters are filled, every element once."


def _facts(report: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    model, target, header = report["model"], report["target"], report["header"]
    trunk, draft = model["blocks"] - model["draft_blocks"], model["draft_blocks"]
    yield "Architecture", model["architecture"]
    yield "Size", size(model["bytes"])
    yield "Tensors", f"{model['tensors']:,}"
    yield "Blocks", f"{trunk} + {draft} draft" if draft else f"{trunk}"
    yield "Files", f"{model['splits']} splits" if model["splits"] > 1 else None
    for label, key in (("Parameters", "general.size_label"), ("Licence", "general.license")):
        yield label, str(header[key]) if key in header else None
    context = header.get(f"{model['architecture']}.context_length")
    yield "Context", f"{context:,} tokens" if isinstance(context, int) else None
    yield "Vision tower", model["mmproj"]
    yield "vLLM", f"{target['vllm']} on {target['device']}" if target["traced"] else "not asked"
    ranks = f"rank 0 of {target['tensor_parallel']}" + (" with expert parallelism" * target["expert_parallel"])
    yield "Traced", ranks if target["traced"] else None
    yield "Model class", target["model_class"].rpartition(".")[2]
    yield "Draft class", None if target["draft_class"] is None else target["draft_class"].rpartition(".")[2]
    config = report["config"]["source"]
    yield "Config", "from the header" if config == "header" else config


def _tensors(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One entry per tensor of the file, problems first; a tensor may be assigned and still have a problem."""
    problems: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for kind in ("unmapped", "mismatched"):
        for entry in report[kind]:
            problems.setdefault(entry["tensor"], []).append((kind, entry))
    assigned = {entry["tensor"]: entry for entry in report["assignments"]}
    for name, found in problems.items():
        kind, entry = found[0]
        reason = "; ".join(entry["reason"] for _, entry in found)
        empty: dict[str, Any] = {"role": kind, "transform": None, "storage": None, "checkpoint": [], "parameters": []}
        yield {**empty, **entry, **assigned.get(name, {}), "problem": kind, "reason": reason}
    for name, entry in assigned.items():
        if name not in problems:
            yield {**entry, "problem": None}


def _table(tensors: Iterable[Mapping[str, Any]], blocks: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping table: one list per tensor, whose fields are named by `columns`."""
    texts = {key: _Numbers() for key in ("ggml_type", "role", "transform", "storage", "problem", "reason", "part")}
    row_numbers = {(stack, block): no for no, (stack, block, *_) in enumerate(blocks["rows"])}
    for part in blocks["parts"]:
        texts["part"](part)
    rows = []
    for entry in tensors:
        where = place(entry["tensor"])
        rows.append(
            [
                entry["tensor"],
                texts["ggml_type"](entry["ggml_type"]),
                entry["shape"],
                entry["bytes"],
                texts["role"](entry["role"]),
                texts["transform"](entry["transform"]),
                texts["storage"](entry["storage"]),
                texts["problem"](entry["problem"]),
                texts["reason"](entry["reason"]),
                -1 if where is None else row_numbers[where.stack, where.block],
                texts["part"](part_of(entry["tensor"]) if where is None else where.part),
                pack_names(entry["checkpoint"]),
                pack_uses(entry["parameters"], len(entry["checkpoint"])),
            ]
        )
    return {"texts": {key: found.texts for key, found in texts.items()}, "tensors": rows}


def _problems(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Problems grouped by kind and reason, the largest group of a kind first."""
    if report["inferred"] is not None:
        cause = f"{report['model']['architecture']} has no rows of its own; these are {report['inferred']['basis']}"
        yield {"kind": "inferred", "names": [], "cause": cause, "remedy": remedy("inferred", "")}
    for kind, key in _KINDS:
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for entry in report[kind]:
            groups.setdefault(pattern(entry["reason"]), []).append(entry)
        for cause, entries in sorted(groups.items(), key=lambda group: -len(group[1])):
            shown = entries[0]["reason"] if len(entries) == 1 else cause
            names = [entry[key] for entry in entries]
            yield {"kind": kind, "names": names, "cause": shown, "remedy": entries[0]["remedy"]}


def _left(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Skipped tensors and phantoms by reason."""
    found = [("skipped", x["reason"], x["tensor"], x["bytes"]) for x in report["assignments"] if x["role"] == "skipped"]
    found += [("phantom", x["reason"], x["tensor"], 0) for x in report["phantom"]]
    groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for kind, reason, name, nbytes in found:
        groups.setdefault((kind, pattern(reason)), []).append((name, nbytes))
    for (kind, reason), entries in groups.items():
        yield {
            "kind": kind,
            "reason": reason,
            "count": len(entries),
            "bytes": sum(nbytes for _, nbytes in entries),
            "names": list(dict.fromkeys(pattern(name) for name, _ in entries)),
        }


def _storage(storage: Mapping[str, Any]) -> dict[str, Any]:
    """Layers by pattern and decision."""
    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for group in storage["groups"]:
        key = (group["role"], pattern(group["layer"]), group["storage"], pattern(group["reason"]))
        groups.setdefault(key, []).append(group)
    return {
        "asked": storage["asked"],
        "note": storage["note"],
        "groups": [
            {
                "role": role,
                "layer": layer,
                "storage": held,
                "reason": reason,
                "count": len(entries),
                "types": counted(" + ".join(sorted(entry["types"])) for entry in entries),
                "bytes": _total(entries, "bytes_per_rank"),
                "dense_bytes": _total(entries, "dense_bytes_per_rank"),
            }
            for (role, layer, held, reason), entries in groups.items()
        ],
    }


def _total(entries: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(entry[key] for entry in entries)
