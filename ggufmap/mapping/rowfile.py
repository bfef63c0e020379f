"""A row set as the Python file of a family, in the style of `ggufmap/archs/`: shared blocks where they fit.

It is meant to be pasted as code, and names may come from a file: they are only ever written as quoted strings.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence

from ggufmap.archs import blocks
from ggufmap.archs.base import Architecture, ConfigRow, Rule, Source, without

_WIDTH = 120
_HELPERS = ("Rule", "block", "derived", "header", "only", "top", "without")
_IN_BLOCK = ("blk.{bid}.", "model.layers.{bid}.")
_RULE_BLOCKS = (
    *("EMBEDDING", "ATTENTION", "QKV_BIAS", "QK_NORM", "INDEXER", "GATED_MLP", "EXPERTS", "SHARED_EXPERTS"),
    *("PRE_NORMS", "FINAL_NORM", "NEXTN"),
)
_CONFIG_BLOCKS = ("COMMON_CONFIG", "MOE_CONFIG", "MLA_CONFIG", "DRAFT_CONFIG")
_MOSTLY = 2 / 3  # of a config block's rows must be there for it to be written as `without(BLOCK, ...)`


def row_file(architecture: Architecture, doc: str, remarks: Mapping[str, str]) -> str:
    """The source of a family file that holds `architecture`: `doc` goes into its docstring, after the constant's name.

    `remarks` are comments, by the tensor of the row.
    """
    constant = "_".join(re.findall(r"[A-Z0-9]+", architecture.names[0].upper())) or "FAMILY"
    constant = f"_{constant}" if constant[0].isdigit() else constant
    rules, used = _rules(architecture.rules, remarks)
    config, config_used = _config(architecture.config)
    if architecture.skips:
        used = [*used, "ROPE_FREQS"]
    body = [
        f"{constant} = Architecture(",
        f"    names=({_quoted(architecture.names[0])},),",
        f"    model_type={_quoted(architecture.model_type)},",
        f"    model_class={_quoted(architecture.model_class)},",
        *rules,
        *config,
        *(["    skips=ROPE_FREQS,"] if architecture.skips else []),
        ")",
    ]
    text = "\n".join(body)
    base = ["Architecture", *(name for name in _HELPERS if f"{name}(" in text)]
    imports = [f"from ggufmap.archs.base import {', '.join(base)}"]
    names = sorted({*used, *config_used})
    if names:
        imports.append(_wrapped("from ggufmap.archs.blocks import ", names))
    doc = textwrap.fill(f'"""{constant}: {doc}', _WIDTH)
    head = f'{doc}\n"""\n\nfrom __future__ import annotations\n\n'
    return head + "\n".join(imports) + "\n\n" + text + "\n"


def _rules(rules: Sequence[Rule], remarks: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The `rules=` argument, and the blocks that it is composed of."""
    left = {(rule.tensors, rule.checkpoint): rule for rule in rules}
    terms: list[str] = []
    used: list[str] = []
    for name in _RULE_BLOCKS:
        block: tuple[Rule, ...] = getattr(blocks, name)
        needed = [rule for rule in block if rule.optional is None]
        found = [left.get((rule.tensors, rule.checkpoint)) for rule in needed]
        kinds = {rule.blocks for rule in found if rule is not None}
        same = all(x is not None and x.transform == y.transform for x, y in zip(found, needed, strict=True))
        if not same or len(kinds) != 1:
            continue
        kind = kinds.pop()
        terms.append(f"only({name}, {', '.join(map(_quoted, kind))})" if kind and kind != needed[0].blocks else name)
        used.append(name)
        for rule in block:
            left.pop((rule.tensors, rule.checkpoint), None)
    own = []
    for rule in left.values():
        own += [f"        # {remarks[rule.tensors[0]]}"] if rule.tensors[0] in remarks else []
        own.append(f"        {_rule(rule)},")
    if own or not terms:
        terms.append("\n".join(["(", *own, "    )"]))
    line = f"    rules={' + '.join(terms)},"
    return [line if len(line) <= _WIDTH and not own else "    rules=" + "\n    + ".join(terms) + ","], used


def _rule(rule: Rule) -> str:
    tensor, checkpoint = rule.tensors[0], rule.checkpoint[0]
    arguments = [] if rule.transform == "copy" else [_quoted(rule.transform)]
    arguments += [] if rule.optional is None else [f"optional={_quoted(rule.optional)}"]
    in_block = tensor.startswith(_IN_BLOCK[0]) and checkpoint.startswith(_IN_BLOCK[1])
    if in_block:
        tensor, checkpoint = tensor.removeprefix(_IN_BLOCK[0]), checkpoint.removeprefix(_IN_BLOCK[1])
    if in_block or not rule.per_block:
        text = f"{'block' if in_block else 'top'}({', '.join([_quoted(tensor), _quoted(checkpoint), *arguments])})"
    else:
        text = f"Rule(({_quoted(tensor)},), ({_quoted(checkpoint)},){''.join(', ' + x for x in arguments)})"
    return f"*only(({text},), {', '.join(map(_quoted, rule.blocks))})" if rule.blocks else text


def _config(rows: Sequence[ConfigRow]) -> tuple[list[str], list[str]]:
    """The `config=` argument, and the blocks that it is composed of."""
    left = list(rows)
    lines: list[str] = []
    used: list[str] = []
    for name in _CONFIG_BLOCKS:
        block: tuple[ConfigRow, ...] = getattr(blocks, name)
        absent = [row.key for row in block if row not in left]
        if len(absent) > (1 - _MOSTLY) * len(block):
            continue
        lines.append(f"        *without({name}, {', '.join(map(_quoted, absent))})," if absent else f"        *{name},")
        used.append(name)
        taken = without(block, *absent)
        left = [row for row in left if row not in taken]
    return ["    config=(", *lines, *(f"        {_config_row(row)}," for row in left), "    ),"], used


def _config_row(row: ConfigRow) -> str:
    names = [row.key] if row.source is Source.DERIVED and row.value == row.key else [row.key, str(row.value)]
    return f"{row.source.value}({', '.join(map(_quoted, names))})"


def _quoted(text: str) -> str:
    """A Python string literal in plain ASCII."""
    return json.dumps(text)


def _wrapped(start: str, names: Sequence[str]) -> str:
    line = start + ", ".join(names)
    return line if len(line) <= _WIDTH else f"{start}(\n" + "".join(f"    {name},\n" for name in names) + ")"
