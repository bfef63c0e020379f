"""The block x part matrix of a report: which blocks are alike, which parts they lack, which types are odd."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"(?P<stack>(?:[\w-]+\.)*blk)\.(?P<block>0|[1-9]\d{0,8})\.(?P<part>.+)", re.DOTALL)
_ABSENT = re.compile(r"(.+) (?:is|are) not in the file", re.DOTALL)
_HALF = re.compile(r".+ is in the file, (.+) is not", re.DOTALL)

_RARE = 5
_FEW_APART = 3
"""A set of parts is an accident, not a kind of block, when a set of that many times its blocks differs in at most so
many parts, of which it lacks all or has all more."""
_MANY_KINDS = 200
"""Real models have below ten kinds; in a file made of accidents there is nothing to compare with."""
_ODD_AMONG = 4
_ODD_SHARE = 10
"""A type is odd where at least 4 blocks of a kind have the part, and at most one in 10 of them this type, or one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands: `blk.3.attn_q.weight` is part `attn_q` of block 3 of the stack `blk`."""

    stack: str
    block: int
    part: str


@dataclass(slots=True)
class Row:
    """One block: the ggml type of each part it has, by the part's largest tensor."""

    stack: str
    block: int
    draft: bool = False
    kind: int = 0
    types: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


def place(name: str) -> Place | None:
    """The place of a tensor; None outside of blocks."""
    match = _NAME.fullmatch(name)
    return None if match is None else Place(match["stack"], int(match["block"]), part_of(match["part"]))


def part_of(name: str) -> str:
    """A name without `.weight` or `.bias`."""
    return name.removesuffix(".weight").removesuffix(".bias") or name


def matrix(tensors: Iterable[Mapping[str, Any]], report: Mapping[str, Any]) -> dict[str, Any]:
    """Rows and parts of the matrix with its holes and odd types, ready for json.dumps.

    `tensors` are entries with tensor, ggml_type, bytes and role. A hole is `[row, part, reason, problem]`; a problem is
    what the plan calls missing, other holes are what blocks of the same kind have. `odd`: `[row, part, usual types]`.
    """
    rows = _rows(tensors)
    missing = dict(_missing(report))
    for one, _ in missing.items():
        rows.setdefault((one.stack, one.block), Row(one.stack, one.block))
    order = sorted(rows, key=lambda key: (key[0] != "blk", key))
    found = [rows[key] for key in order]
    parts = list(dict.fromkeys([p for row in found for p in row.types] + [one.part for one in missing]))
    kinds = _kinds(found)
    number = {part: no for no, part in enumerate(parts)}
    return {
        "rows": [[row.stack, row.block, row.draft, row.kind] for row in found],
        "parts": parts,
        "holes": [[no, number[part], why, bad] for no, part, why, bad in _holes(found, kinds, missing, report)],
        "odd": [[no, number[part], usual] for no, part, usual in _odd(found, kinds)],
    }


def _rows(tensors: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], Row]:
    rows: dict[tuple[str, int], Row] = {}
    for entry in tensors:
        where = place(entry["tensor"])
        if where is None:
            continue
        row = rows.setdefault((where.stack, where.block), Row(where.stack, where.block))
        row.draft = row.draft or entry["role"] == "draft"
        if entry["bytes"] >= row.sizes.get(where.part, -1):
            row.types[where.part], row.sizes[where.part] = entry["ggml_type"], entry["bytes"]
    return rows


def _kinds(rows: Sequence[Row]) -> list[list[int]]:
    """Rows that are alike, as lists of their numbers: the same stack and role, and the same parts but for accidents."""
    groups: dict[tuple[str, bool, frozenset[str]], list[int]] = defaultdict(list)
    for no, row in enumerate(rows):
        groups[row.stack, row.draft, frozenset(row.types)].append(no)
    rare_first = sorted(groups, key=lambda key: len(groups[key]))
    for key in rare_first if len(groups) <= _MANY_KINDS else ():
        stack, draft, parts = key
        larger = [
            (other, members)
            for other, members in groups.items()
            if other[:2] == (stack, draft)
            and (parts < other[2] or parts > other[2])
            and len(other[2] ^ parts) <= _FEW_APART
            and len(members) >= _RARE * len(groups[key])
        ]
        if larger:
            best = max(larger, key=lambda found: len(found[1]))[0]
            groups[best] += groups.pop(key)
    kinds = [sorted(members) for members in groups.values()]
    kinds.sort()
    for kind, members in enumerate(kinds):
        for no in members:
            rows[no].kind = kind
    return kinds


def _missing(report: Mapping[str, Any]) -> Iterable[tuple[Place, str]]:
    """The places of tensors that the plan misses, by the reasons of mapping/resolver.py."""
    for entry in report["missing"]:
        match = _HALF.fullmatch(entry["reason"]) or _ABSENT.fullmatch(entry["reason"])
        for name in [] if match is None else re.split(r" \+ |, ", match[1]):
            where = place(name)
            if where is not None:
                yield where, entry["reason"]


def _holes(
    rows: Sequence[Row], kinds: Sequence[Sequence[int]], missing: Mapping[Place, str], report: Mapping[str, Any]
) -> Iterable[tuple[int, str, str, bool]]:
    expected = {
        where: entry["reason"]
        for entry in report["phantom"]
        for name in entry["tensor"].split(" + ")
        if (where := place(name)) is not None
    }
    numbers = {(row.stack, row.block): no for no, row in enumerate(rows)}
    for where, reason in missing.items():
        no = numbers[where.stack, where.block]
        if where.part not in rows[no].types:
            yield no, where.part, reason, True
    for members in kinds:
        usual = Counter(part for no in members for part in rows[no].types)
        for no in members:
            row = rows[no]
            for part in usual:
                where = Place(row.stack, row.block, part)
                if part not in row.types and where not in missing and usual[part] * 2 > len(members):
                    alike = f"{usual[part]} of {len(members)} blocks of this kind have it"
                    yield no, part, f"{alike}; {expected[where]}" if where in expected else alike, False


def _odd(rows: Sequence[Row], kinds: Sequence[Sequence[int]]) -> Iterable[tuple[int, str, str]]:
    for members in kinds:
        for part in dict.fromkeys(part for no in members for part in rows[no].types):
            having = [no for no in members if part in rows[no].types]
            counts = Counter(rows[no].types[part] for no in having)
            if len(having) < _ODD_AMONG:
                continue
            few = max(1, len(having) // _ODD_SHARE)
            odd = {type for type, count in counts.items() if count <= few}
            if len(odd) == len(counts):
                continue
            usual = ", ".join(f"{count} x {type}" for type, count in counts.most_common() if type not in odd)
            yield from ((no, part, usual) for no in having if rows[no].types[part] in odd)
