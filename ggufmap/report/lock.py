"""The lock file: where every tensor goes, pinned as text with one line per tensor, and what has moved since.

A lock says for each tensor its ggml type, shape, checkpoint tensors and vLLM parameters. Names of experts are folded
(`experts.{0..255}.w`), so a block of 256 experts is one line. What a lock says is compared and shown, nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ggufmap.errors import FileError
from ggufmap.mapping.plan import Plan
from ggufmap.report.as_json import assignments
from ggufmap.report.patterns import pattern

LOCK_SCHEMA = 1
Lock = dict[str, Any]

_NUMBER = re.compile(r"([0-9]+)")
_TARGET = ("device", "tensor_parallel", "expert_parallel", "model_class", "draft_class")
# What an entry may say: (key of the lock, what it is called, whether only a trace knows it).
_FIELDS = (
    ("type", "ggml type", False),
    ("shape", "shape", False),
    ("role", "role", False),
    ("transform", "transform", False),
    ("checkpoint", "checkpoint tensor", False),
    ("storage", "storage", True),
    ("parameters", "parameter", True),
)
_LISTS = ("shape", "checkpoint", "parameters")
_REMEDY = "Solve a merge in it by hand, or delete it and write it again with --update."


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that the lock and the mapping say differently; None where one of them does not know `subject`."""

    subject: str
    """A tensor, or `target` for what is said of the whole model."""
    what: str
    old: str | None
    new: str | None

    @property
    def change(self) -> str:
        """`added`, `removed` or `moved`."""
        return "added" if self.old is None else "removed" if self.new is None else "moved"

    @property
    def text(self) -> str:
        """What was, and what is."""
        if self.old is None:
            return f"new: {self.new}"
        return f"gone: {self.old}" if self.new is None else f"{self.what} {self.old} -> {self.new}"


def make_lock(plan: Plan) -> Lock:
    """The lock of `plan`, ready for `dump_lock`."""
    trace = plan.trace
    target = {
        "vllm": None if trace is None else trace.vllm,
        "device": None if trace is None else trace.device,
        "tensor_parallel": 1 if trace is None else trace.tensor_parallel,
        "expert_parallel": trace is not None and trace.expert_parallel,
        "model_class": plan.model_class if trace is None else trace.target.model_class,
        "draft_class": None if trace is None or trace.draft is None else trace.draft.model_class,
    }
    entries = {entry["tensor"]: _entry(entry) for entry in assignments(plan)}
    for name, facts in plan.model.tensors.items():
        entries.setdefault(name, {"type": facts.ggml_type, "shape": list(facts.shape), "role": "unmapped"})
    return {
        "lock": LOCK_SCHEMA,
        "architecture": plan.model.architecture,
        "target": target,
        "tensors": {name: entries[name] for name in sorted(entries, key=_natural)},
    }


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An assignment without what goes without saying: the target's role, a plain copy, dense storage."""
    found: dict[str, Any] = {"type": entry["ggml_type"], "shape": entry["shape"]}
    if entry["role"] != "target":
        found["role"] = entry["role"]
    if entry["transform"] not in (None, "copy"):
        found["transform"] = entry["transform"]
    if entry["storage"] == "packed":
        found["storage"] = "packed"
    if entry["checkpoint"]:
        found["checkpoint"] = folded(entry["checkpoint"])
    if entry["parameters"]:
        found["parameters"] = _parameters(entry["parameters"])
    return found


def _parameters(uses: Iterable[Mapping[str, Any]]) -> list[str]:
    """Parameters with their shard (`qkv_proj.weight[q]`) and experts (`w13_weight[w1]{0..255}`)."""
    shown = []
    for (name, shard), group in groupby(uses, lambda use: (use["name"], use["shard"])):
        experts = [use["experts"] for use in group]
        text = name if shard is None else f"{name}[{shard}]"
        shown.append(text if None in experts else f"{text}{{{_runs(experts)}}}")
    return folded(list(dict.fromkeys(shown)))


def folded(names: Sequence[str]) -> list[str]:
    """`names` with those that differ in one number alone as one: `["e.0.w", "e.1.w"]` is `["e.{0..1}.w"]`.

    The order of the numbers stays as it is: `{1,0}` is not `{0..1}`.
    """
    groups: dict[str, list[list[str]]] = {}
    for name in names:
        groups.setdefault(pattern(name), []).append(name.split("."))
    return [name for rows in groups.values() for name in _folded(rows)]


def _folded(rows: list[list[str]]) -> list[str]:
    varying = [place for place, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
    if len(rows) == 1 or len(varying) != 1:
        return [".".join(row) for row in rows]
    place = varying[0]
    numbers = _runs([int(row[place]) for row in rows])
    return [".".join([*rows[0][:place], f"{{{numbers}}}", *rows[0][place + 1 :]])]


def _runs(numbers: Iterable[int]) -> str:
    """`0..3,7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts `blk.2` before `blk.10`: numbers by their length first. A name can hold more digits than int() takes."""
    parts = _NUMBER.split(name)
    texts = [(0, part) for part in parts]
    texts[1::2] = [(len(digits), digits) for digits in (part.lstrip("0") for part in parts[1::2])]
    return texts, name


def dump_lock(lock: Lock) -> str:
    """The text of a lock file: stable, with one line per tensor."""
    lines = ["{"]
    lines += [f" {_json(key)}: {_json(lock[key])}," for key in ("lock", "architecture")]
    for key, last in (("target", ","), ("tensors", "")):
        rows = [f"  {_json(name)}: {_json(value)}" for name, value in lock[key].items()]
        lines += [f' "{key}": {{', *(row + "," for row in rows[:-1]), *rows[-1:], f" }}{last}"]
    return "\n".join([*lines, "}"]) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def read_lock(text: str, file: str) -> Lock:
    """Parse a lock file. Raises FileError when it is none, is damaged, or is of another schema."""
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise FileError(f"{file}: not a lock file: {e}", hint=_REMEDY) from e
    if not isinstance(found, dict) or "lock" not in found:
        raise FileError(f"{file}: not a lock file: it has no lock number", hint="Is it another JSON file?")
    if found["lock"] != LOCK_SCHEMA:
        raise FileError(
            f"{file}: lock number {found['lock']!r}, this ggufmap reads {LOCK_SCHEMA}",
            hint="Use the ggufmap that wrote it, or delete it and write it again with --update.",
        )
    problem = _problem(found)
    if problem is not None:
        raise FileError(f"{file}: not a lock file: {problem}", hint=_REMEDY)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A merge can leave one tensor twice; json would take the last without a word."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _problem(lock: Lock) -> str | None:
    """What is wrong with the types of a parsed lock."""
    target, tensors = lock.get("target"), lock.get("tensors")
    if not isinstance(lock.get("architecture"), str) or not isinstance(target, dict) or not isinstance(tensors, dict):
        return "architecture, target or tensors is missing or of another type"
    if not all(value is None or isinstance(value, str | int) for value in target.values()):
        return "target holds a value that is no text, number or null"
    for name, entry in tensors.items():
        if not isinstance(entry, dict) or not {"type", "shape"} <= entry.keys():
            return f"the entry of {name!r} has no type and shape"
        for key, value in entry.items():
            wanted = int if key == "shape" else str
            items = value if key in _LISTS and isinstance(value, list) else [value]
            if (key in _LISTS) is not isinstance(value, list) or not all(isinstance(item, wanted) for item in items):
                return f"{key} of {name!r} is of another type"
    return None


def traced(lock: Lock) -> bool:
    """Whether the lock was made with vLLM, and so knows parameters."""
    return lock["target"].get("vllm") is not None


def compare(old: Lock, new: Lock) -> list[Difference]:
    """What is different, tensors in natural order. What only a trace knows is compared where both have one."""
    both = traced(old) and traced(new)
    found = _header(old, new, both)
    for name in sorted({*old["tensors"], *new["tensors"]}, key=_natural):
        before, after = old["tensors"].get(name), new["tensors"].get(name)
        if before is None or after is None:
            found.append(Difference(name, "tensor", _summary(before), _summary(after)))
            continue
        for key, what, needs_trace in _FIELDS:
            texts = _text(key, before.get(key)), _text(key, after.get(key))
            if texts[0] != texts[1] and (both or not needs_trace):
                found.append(Difference(name, what, *texts))
    return found


def _header(old: Lock, new: Lock, both: bool) -> list[Difference]:
    pairs = [("architecture", old["architecture"], new["architecture"])]
    if both:
        pairs += [(key.replace("_", " "), old["target"].get(key), new["target"].get(key)) for key in _TARGET]
    return [Difference("target", what, _value(a), _value(b)) for what, a, b in pairs if a != b]


def _value(value: str | int | None) -> str:
    return "none" if value is None else str(value)


# What an entry says by leaving it out (see `_entry`).
_DEFAULTS = {"role": "target", "transform": "copy", "storage": "dense"}


def _text(key: str, value: Any) -> str:
    if key == "shape":
        return "x".join(map(str, value))
    if key in _LISTS:
        return ", ".join(value or ["none"])
    return str(value or _DEFAULTS.get(key))


def _summary(entry: Mapping[str, Any] | None) -> str | None:
    """A tensor that only one side has: its type, shape and destination."""
    if entry is None:
        return None
    places = entry.get("parameters") or entry.get("checkpoint") or [entry.get("role", "target")]
    return f"{entry['type']} {_text('shape', entry['shape'])} -> {', '.join(places)}"
