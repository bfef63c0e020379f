"""The resolver: a checkpoint's tensor table and an architecture's rows in, a Plan out. Nothing is dropped silently."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ggufmap.archs import Architecture, Rule
from ggufmap.checkpoint import Checkpoint, Metadata, Tensor
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout, block_of, layout, no_projector_rows
from ggufmap.mapping.plan import (
    Assignment,
    Constant,
    Mismatched,
    Missing,
    ModelFacts,
    Phantom,
    Plan,
    Role,
    Skipped,
    TensorFacts,
    Unmapped,
)
from ggufmap.mapping.transforms import Transform, output_shapes

_BLOCK = re.compile(r"blk\.\d+\.")

# Header keys that may be absent, with the key that llama.cpp then uses (src/llama-model.cpp, load_hparams).
_FALLBACK_KEYS = {"attention.head_count_kv": "attention.head_count"}

# A search for a near name takes 0.2 to 5 ms; real families have below 100 kinds of tensors, a hostile file 100,000.
_SEARCHED = 100


@dataclass(slots=True)
class _State:
    """The plan while it is being made."""

    layout: Layout
    assignments: list[Assignment] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    phantom: list[Phantom] = field(default_factory=list)
    mismatched: list[Mismatched] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Checkpoint tensor -> the tensors it comes from."""
    taken: set[str] = field(default_factory=set)


def resolve(checkpoint: Checkpoint, architecture: Architecture) -> Plan:
    """Assign every tensor of `checkpoint` by the rows of `architecture`, with the file alone (no vLLM).

    Raises FileError when the header's block counts are absurd, MetadataError when a key that a row needs is missing.
    """
    blocks = layout(checkpoint, architecture)
    architecture = blocks.architecture
    state = _State(blocks)
    absent: list[Rule] = []
    for rule in _expanded(architecture, blocks):
        present = [name for name in rule.tensors if name in checkpoint.tensors]
        if len(present) == len(rule.tensors):
            _assign(state, checkpoint, rule)
        elif present:
            _half(state, rule, present)
        else:
            absent.append(rule)
    for rule in absent:
        _explain_absence(state, rule)
    _skip(state, checkpoint, architecture)
    if architecture.vision is None:
        state.skipped.update((name, no_projector_rows(checkpoint)) for name in checkpoint.projector_tensors)
    order = {name: index for index, name in enumerate(checkpoint.tensors)}
    left = [name for name in checkpoint.tensors if name not in state.taken and name not in state.skipped]
    return Plan(
        model=_facts(checkpoint, blocks),
        model_class=blocks.model_class,
        assignments=tuple(sorted(state.assignments, key=lambda a: order[a.tensors[0]])),
        skipped=tuple(Skipped(name, state.skipped[name]) for name in checkpoint.tensors if name in state.skipped),
        unmapped=_unmapped(left, architecture, blocks),
        missing=tuple(state.missing),
        phantom=tuple(state.phantom),
        mismatched=tuple(state.mismatched),
        warnings=blocks.warnings,
    )


def _facts(checkpoint: Checkpoint, blocks: Layout) -> ModelFacts:
    return ModelFacts(
        path=str(checkpoint.path),
        architecture=checkpoint.architecture,
        name=checkpoint.name,
        splits=checkpoint.own_splits,
        nbytes=checkpoint.nbytes,
        blocks=len(blocks.trunk) + len(blocks.draft),
        draft_blocks=len(blocks.draft),
        tensors={t.name: TensorFacts(t.type.name, t.shape, t.nbytes) for t in checkpoint.tensors.values()},
        mmproj=None if checkpoint.projector_path is None else str(checkpoint.projector_path),
    )


def _expanded(architecture: Architecture, blocks: Layout) -> Iterator[Rule]:
    for rule in architecture.rules:
        if not rule.per_block:
            yield rule
            continue
        for place, bid in enumerate(blocks.blocks(rule.blocks)):
            numbers = {"{bid}": bid, "{nextn}": bid - len(blocks.trunk), "{place}": place}
            yield Rule(
                tuple(name.replace("{bid}", str(bid)) for name in rule.tensors),
                tuple(_numbered(name, numbers) for name in rule.checkpoint),
                rule.transform,
                rule.optional,
                values=tuple(replace(v, checkpoint=v.checkpoint.replace("{bid}", str(bid))) for v in rule.values),
            )


def _numbered(name: str, numbers: Mapping[str, int]) -> str:
    for placeholder, number in numbers.items():
        name = name.replace(placeholder, str(number))
    return name


def _role(state: _State, name: str) -> Role:
    bid = block_of(name)
    return Role.DRAFT if bid is not None and bid in state.layout.draft else Role.TARGET


def _assign(state: _State, checkpoint: Checkpoint, rule: Rule) -> None:
    first = rule.tensors[0]
    tensors = [checkpoint.tensors[name] for name in rule.tensors]
    made = {state.owners[name] for name in rule.checkpoint if name in state.owners}
    if made and rule.optional is not None:
        reason = f"the same values as {', '.join(sorted(made))}"
        state.skipped.update((name, reason) for name in rule.tensors if name not in state.taken)
        return
    state.taken.update(rule.tensors)
    problem = next((found for found in map(_unusable, tensors) if found is not None), None)
    if problem is not None:
        state.mismatched.append(problem)
        return
    transform = _bind(rule, checkpoint.metadata, checkpoint.architecture)
    try:
        shapes = output_shapes(transform, [tensor.shape for tensor in tensors])
    except ValueError as e:
        state.mismatched.append(Mismatched(first, f"shape {tensors[0].shape}: {e} (transform {transform})"))
        return
    names = _per_expert(rule, len(shapes))
    for name in names:
        if name in state.owners:
            state.mismatched.append(Mismatched(first, f"{name} is also made of {state.owners[name]}"))
            return
        state.owners[name] = " + ".join(rule.tensors)
    constants = _constants(rule, checkpoint.metadata)
    state.assignments.append(Assignment(rule.tensors, names, tuple(shapes), transform, _role(state, first), constants))


def _constants(rule: Rule, metadata: Metadata) -> tuple[Constant, ...]:
    """The row's header values for its block. Raises FileError when a list has none for it."""
    found = []
    bid = block_of(rule.tensors[0]) or 0
    for row in rule.values:
        numbers = metadata.numbers(row.key)
        if bid >= len(numbers):
            raise FileError(f"{metadata.file}: {row.key} has {len(numbers)} values, none for block {bid}")
        found.append(Constant(row.checkpoint, row.shape, float(str(numbers[bid]))))
    return tuple(found)


def _per_expert(rule: Rule, count: int) -> tuple[str, ...]:
    """The row's checkpoint names; names with `{eid}` stand for one name per expert each, expert by expert."""
    if "{eid}" in rule.checkpoint[0]:
        experts = range(count // len(rule.checkpoint))
        return tuple(name.replace("{eid}", str(eid)) for eid in experts for name in rule.checkpoint)
    return rule.checkpoint


def _unusable(tensor: Tensor) -> Mismatched | None:
    if tensor.type.problem is not None:
        return Mismatched(tensor.name, f"ggml type {tensor.type.name} (id {tensor.type.id}): {tensor.type.problem}")
    if not tensor.elements:
        return Mismatched(tensor.name, f"shape {tensor.shape} holds no values")
    return None


def _bind(rule: Rule, metadata: Metadata, architecture: str) -> Transform:
    """The rule's transform with its arguments, which stand behind a colon, separated by commas."""
    name, _, arguments = rule.transform.partition(":")
    if not arguments:
        return Transform(name)
    first, *more = (_argument(text, rule, metadata, architecture) for text in arguments.split(","))
    return Transform(name, first, tuple(more))


def _argument(argument: str, rule: Rule, metadata: Metadata, architecture: str) -> int:
    """A number as it stands, a header key looked up (per block if an array)."""
    try:
        return int(argument)
    except ValueError:
        key = f"{architecture}.{argument}"
    if key not in metadata and argument in _FALLBACK_KEYS:
        key = f"{architecture}.{_FALLBACK_KEYS[argument]}"
    if metadata.is_array(key):
        values = metadata.integer_list(key)
        bid = block_of(rule.tensors[0])
        if bid is None or bid >= len(values):
            raise FileError(f"{metadata.file}: {key} has {len(values)} values, none for {rule.tensors[0]}")
        return values[bid]
    return metadata.integer(key)


def _half(state: _State, rule: Rule, present: list[str]) -> None:
    """Part of a row's tensors: nothing can be made of them."""
    state.taken.update(present)
    gone = [name for name in rule.tensors if name not in present]
    reason = f"{', '.join(present)} is in the file, {', '.join(gone)} is not"
    state.missing.extend(Missing(name, _role(state, present[0]), reason) for name in rule.checkpoint)


def _explain_absence(state: _State, rule: Rule) -> None:
    """A row without tensors: superseded by another row, optional, or missing."""
    names = [name.replace("{eid}", "0") for name in rule.checkpoint]
    owners = {state.owners[name] for name in names if name in state.owners}
    shown = " + ".join(rule.tensors)
    if owners:
        state.phantom.append(Phantom(shown, rule.checkpoint, f"superseded by {', '.join(sorted(owners))}"))
    elif rule.optional is not None:
        state.phantom.append(Phantom(shown, rule.checkpoint, f"optional: {rule.optional}"))
    else:
        reason = f"{shown} is not in the file"
        state.missing.extend(Missing(name, _role(state, rule.tensors[0]), reason) for name in rule.checkpoint)


def _skip(state: _State, checkpoint: Checkpoint, architecture: Architecture) -> None:
    """Tensors that are known to carry no parameter."""
    for skip in architecture.skips:
        bids = state.layout.blocks(skip.blocks) if "{bid}" in skip.tensor else [None]
        for name in _meant(skip.tensor, bids, checkpoint.tensors):
            if name not in state.taken:
                state.skipped.setdefault(name, skip.reason)


def _meant(pattern: str, bids: Sequence[int | None], names: Iterable[str]) -> list[str]:
    """The tensors that `pattern` means in these blocks (None: outside of blocks); a `*` at its end is anything."""
    if not pattern.endswith("*"):
        wanted = {pattern.replace("{bid}", str(bid)) for bid in bids}
        return [name for name in names if name in wanted]
    start, among = pattern.removesuffix("*"), set(bids)
    places = ((name, block_of(name)) for name in names)
    return [name for name, bid in places if bid in among and name.startswith(start.replace("{bid}", str(bid)))]


def _unmapped(names: Sequence[str], architecture: Architecture, blocks: Layout) -> tuple[Unmapped, ...]:
    known = dict.fromkeys(tensor for rule in architecture.rules for tensor in rule.tensors)
    nearest: dict[str, str] = {}
    found = []
    for name in names:
        pattern = _BLOCK.sub("blk.{bid}.", name)
        reason = _why_unmapped(name, pattern, pattern in known, blocks)
        if reason is None:
            if pattern not in nearest and len(nearest) < _SEARCHED:
                near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.8)
                nearest[pattern] = f" (nearest: {near[0]})" if near else ""
            reason = f"no row for {pattern}{nearest.get(pattern, '')}"
        found.append(Unmapped(name, reason))
    return tuple(found)


def _why_unmapped(name: str, pattern: str, known: bool, blocks: Layout) -> str | None:
    """A probable cause: a block beyond the count, a row that is not for this block, experts in a dense family."""
    bid = block_of(name)
    total = len(blocks.trunk) + len(blocks.draft)
    if bid is not None and bid >= total:
        return f"block {bid} is beyond the {total} blocks of this model"
    if known:
        return f"block {bid} is not of a kind that has {pattern}"
    if "_exps" in name or "ffn_gate_inp" in name:
        return f"a mixture-of-experts tensor; the {blocks.architecture.names[0]} rows are for dense models"
    return None
