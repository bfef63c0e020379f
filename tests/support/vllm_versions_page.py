"""docs/vllm-versions.md, out of the results of `scripts/vllm-matrix` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_HEAD = """# vLLM versions

Written by `scripts/vllm-matrix`, from its results only. Each version has an environment of its own, and ggufmap runs in
it unchanged: what differs between versions lives in `ggufmap/target/compat.py` alone. For each file the audit is made
and traced through that vLLM's classes:

- **ok**: every tensor has its place, and vLLM's own `load_weights` fills every parameter of the class that it chose
  (and of the draft's class); a draft flag that vLLM's override loses on the way is named
- **no**: what vLLM or the audit says stands below the table

*real size*: the header of a model of that size, with holes for its data. *tiny*: a random checkpoint through
llama.cpp's own converter. A column with a device is vLLM's CUDA wheel with that GPU simulated; a tiny model may have
head sizes that no GPU kernel has, and nothing is served without a GPU. *served*: `ggufmap serve` with that vLLM answers
a prompt with the same 16 tokens, greedily in float32, as with vLLM 0.32.0.
"""
_SERVED = "served"
_REFERENCE = "0.32.0"
Results = Sequence[Mapping[str, Any]]


def render(results: Results) -> str:
    """The page: `results` are those of the environments, in the order of the columns."""
    notes: dict[str, int] = {}
    table = [*_table(results, notes)]
    words = [f"{number}. {text}" for text, number in notes.items()]
    lines = [_HEAD, *_environments(results), "", *table, "", *(["## What they say", "", *words] if words else [])]
    return "\n".join(lines).rstrip() + "\n"


def label(result: Mapping[str, Any]) -> str:
    """How an environment is called: its version, and the GPU where one is simulated."""
    return f"{result['vllm']} {result['device']}".rstrip()


def _environments(results: Results) -> Iterator[str]:
    yield "| vLLM | distribution | Python | torch | transformers |"
    yield "|---|---|---|---|---|"
    for result in results:
        found = result.get("packages")
        cells = ["not installed", "", "", ""]
        if found is not None:
            cells = [result["distribution"], result["python"], found["torch"], found["transformers"]]
        yield "| " + " | ".join([label(result), *cells]) + " |"


def _table(results: Results, notes: dict[str, int]) -> Iterator[str]:
    rows = dict.fromkeys((name, case["family"], case["file"]) for r in results for name, case in r["cases"].items())
    yield "| model | family | file | " + " | ".join(map(label, results)) + " |"
    yield "|---|---|---|" + "---|" * len(results)
    for name, family, file in rows:
        cells = [_cell(result["cases"].get(name), result, notes) for result in results]
        yield "| " + " | ".join([name, f"`{family}`", file, *cells]) + " |"
    served = [_answer(result, _reference(results), notes) for result in results]
    yield "| " + " | ".join(["Gemma 3 270M Q4_K_M", "`gemma3`", _SERVED, *served]) + " |"


def _cell(case: Mapping[str, Any] | None, result: Mapping[str, Any], notes: dict[str, int]) -> str:
    if "error" in result:
        return _no(result["error"], notes)
    if case is None:
        return "not tried"
    if case["says"]:
        return _no(case["says"], notes)
    draft = f", draft `{case['draft']}`" if case["draft"] else ""
    lost = f"; loses {', '.join(case['lost'])}" if case["lost"] else ""
    return f"ok `{case['class']}`{draft}{lost}"


def _answer(result: Mapping[str, Any], reference: str | None, notes: dict[str, int]) -> str:
    served = result.get(_SERVED)
    if served is None:
        return "not tried"
    if "error" in served:
        return _no(served["error"], notes)
    return "ok" if served["text"] == reference else _no(f"answers {served['text']!r}, not {reference!r}", notes)


def _reference(results: Results) -> str | None:
    """The answer that all are held against: that of the reference version, else of the first that has one."""
    found = [result for result in results if "text" in (result.get(_SERVED) or {})]
    best = next((result for result in found if result["vllm"] == _REFERENCE), found[0] if found else None)
    return None if best is None else best[_SERVED]["text"]


def _no(says: str, notes: dict[str, int]) -> str:
    """A failed cell, which names the note with the words."""
    text = " ".join(says.split()).replace("|", "\\|")
    return f"**no** [{notes.setdefault(text, len(notes) + 1)}]"
