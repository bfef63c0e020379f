"""The resolver: a checkpoint's tensor table and an architecture's rows in, a Plan out. Nothing is dropped silently."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ggufmap.archs import Architecture, Rule
from ggufmap.checkpoint import Checkpoint, Metadata, Tensor
from ggufmap.errors import FileError
from ggufmap.mapping.plan import (
    Assignment,
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

_BLOCK = re.compile(r"blk\.(\d+)\.")

# Header keys that may be absent, with the key that llama.cpp then uses (src/llama-model.cpp, load_hparams).
_FALLBACK_KEYS = {"attention.head_count_kv": "attention.head_count"}


@dataclass(slots=True)
class _Draft:
    """The plan while it is being made."""

    assignments: list[Assignment] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    phantom: list[Phantom] = field(default_factory=list)
    mismatched: list[Mismatched] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    """Checkpoint tensor -> the tensors it comes from."""
    taken: set[str] = field(default_factory=set)


def resolve(checkpoint: Checkpoint, architecture: Architecture) -> Plan:
    """Assign every tensor of `checkpoint` by the rows of `architecture`, with the file alone (no vLLM).

    Raises FileError when the header's block count is absurd, MetadataError when a key that a row needs is missing.
    """
    blocks = block_count(checkpoint)
    state = _Draft()
    absent: list[Rule] = []
    for rule in _expanded(architecture, blocks):
        present = [name for name in rule.tensors if name in checkpoint.tensors]
        if len(present) == len(rule.tensors):
            _assign(state, checkpoint, rule)
        elif present:
            state.taken.update(present)
            gone = [name for name in rule.tensors if name not in checkpoint.tensors]
            reason = f"{', '.join(present)} is in the file, {', '.join(gone)} is not"
            state.missing.extend(Missing(name, Role.TARGET, reason) for name in rule.checkpoint)
        else:
            absent.append(rule)
    for rule in absent:
        _explain_absence(state, rule)
    skipped = _skipped(checkpoint, architecture, blocks, state.taken)
    left = set(checkpoint.tensors) - state.taken - {x.tensor for x in skipped}
    order = {name: index for index, name in enumerate(checkpoint.tensors)}
    return Plan(
        model=_facts(checkpoint, blocks),
        model_class=architecture.model_class,
        assignments=tuple(sorted(state.assignments, key=lambda a: order[a.tensors[0]])),
        skipped=tuple(skipped),
        unmapped=tuple(
            Unmapped(x, _why_unmapped(x, architecture, blocks)) for x in sorted(left, key=order.__getitem__)
        ),
        missing=tuple(state.missing),
        phantom=tuple(state.phantom),
        mismatched=tuple(state.mismatched),
    )


def _facts(checkpoint: Checkpoint, blocks: int) -> ModelFacts:
    return ModelFacts(
        path=str(checkpoint.path),
        architecture=checkpoint.architecture,
        name=checkpoint.name,
        splits=len(checkpoint.splits),
        nbytes=checkpoint.nbytes,
        blocks=blocks,
        draft_blocks=0,
        tensors={t.name: TensorFacts(t.type.name, t.shape, t.nbytes) for t in checkpoint.tensors.values()},
    )


def block_count(checkpoint: Checkpoint) -> int:
    """`block_count` of the header. Raises FileError when the file has fewer tensors than that many blocks need."""
    blocks = checkpoint.metadata.integer(f"{checkpoint.architecture}.block_count")
    if not 0 < blocks <= len(checkpoint.tensors):
        raise FileError(
            f"{checkpoint.path}: {checkpoint.architecture}.block_count is {blocks}, "
            f"the file has {len(checkpoint.tensors)} tensors"
        )
    return blocks


def _expanded(architecture: Architecture, blocks: int) -> Iterator[Rule]:
    for rule in architecture.rules:
        if not rule.per_block:
            yield rule
            continue
        for bid in range(blocks):
            yield Rule(
                tuple(name.replace("{bid}", str(bid)) for name in rule.tensors),
                tuple(name.replace("{bid}", str(bid)) for name in rule.checkpoint),
                rule.transform,
                rule.optional,
            )


def _assign(state: _Draft, checkpoint: Checkpoint, rule: Rule) -> None:
    state.taken.update(rule.tensors)
    first = rule.tensors[0]
    tensors = [checkpoint.tensors[name] for name in rule.tensors]
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
    for name in rule.checkpoint:
        if name in state.owners:
            state.mismatched.append(Mismatched(first, f"{name} is also made of {state.owners[name]}"))
            return
        state.owners[name] = " + ".join(rule.tensors)
    state.assignments.append(Assignment(rule.tensors, rule.checkpoint, tuple(shapes), transform, Role.TARGET))


def _unusable(tensor: Tensor) -> Mismatched | None:
    if tensor.type.problem is not None:
        return Mismatched(tensor.name, f"ggml type {tensor.type.name} (id {tensor.type.id}): {tensor.type.problem}")
    if not tensor.elements:
        return Mismatched(tensor.name, f"shape {tensor.shape} holds no values")
    return None


def _bind(rule: Rule, metadata: Metadata, architecture: str) -> Transform:
    """The rule's transform with its argument: a number as it stands, a header key looked up (per block if an array)."""
    name, _, argument = rule.transform.partition(":")
    if not argument:
        return Transform(name)
    try:
        return Transform(name, int(argument))
    except ValueError:
        key = f"{architecture}.{argument}"
    if key not in metadata and argument in _FALLBACK_KEYS:
        key = f"{architecture}.{_FALLBACK_KEYS[argument]}"
    if metadata.is_array(key):
        values = metadata.integer_list(key)
        bid = _block_of(rule.tensors[0])
        if bid is None or bid >= len(values):
            raise FileError(f"{metadata.file}: {key} has {len(values)} values, none for {rule.tensors[0]}")
        return Transform(name, values[bid])
    return Transform(name, metadata.integer(key))


def _explain_absence(state: _Draft, rule: Rule) -> None:
    """A row without tensors: superseded by another row, optional, or missing."""
    owners = {state.owners[name] for name in rule.checkpoint if name in state.owners}
    shown = " + ".join(rule.tensors)
    if owners:
        state.phantom.append(Phantom(shown, rule.checkpoint, f"superseded by {', '.join(sorted(owners))}"))
    elif rule.optional is not None:
        state.phantom.append(Phantom(shown, rule.checkpoint, f"optional: {rule.optional}"))
    else:
        reason = f"{shown} is not in the file"
        state.missing.extend(Missing(name, Role.TARGET, reason) for name in rule.checkpoint)


def _skipped(checkpoint: Checkpoint, architecture: Architecture, blocks: int, taken: set[str]) -> list[Skipped]:
    reasons: dict[str, str] = {}
    for skip in architecture.skips:
        names = (
            [skip.tensor.replace("{bid}", str(b)) for b in range(blocks)] if "{bid}" in skip.tensor else [skip.tensor]
        )
        reasons.update((name, skip.reason) for name in names)
    return [Skipped(name, reasons[name]) for name in checkpoint.tensors if name in reasons and name not in taken]


def _why_unmapped(name: str, architecture: Architecture, blocks: int) -> str:
    """A probable cause: a block beyond the count, experts in a dense family, a near miss of a known name."""
    bid = _block_of(name)
    if bid is not None and bid >= blocks:
        return f"block {bid} is beyond block_count {blocks}"
    if "_exps" in name or "ffn_gate_inp" in name:
        return f"a mixture-of-experts tensor; the {architecture.names[0]} rows are for dense models"
    pattern = _BLOCK.sub("blk.{bid}.", name)
    known = [tensor for rule in architecture.rules for tensor in rule.tensors]
    near = difflib.get_close_matches(pattern, known, n=1, cutoff=0.8)
    return f"no row for {pattern}" + (f" (nearest: {near[0]})" if near and near[0] != pattern else "")


def _block_of(name: str) -> int | None:
    match = _BLOCK.match(name)
    return int(match[1]) if match else None
