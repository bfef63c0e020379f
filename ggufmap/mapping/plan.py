"""The immutable Plan: the one result of resolving that audit prints, the loader streams and `serve` gates on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ggufmap.mapping.transforms import Shape, Transform


class Role(StrEnum):
    """Which vLLM model a tensor belongs to."""

    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class Constant:
    """A checkpoint tensor of one value, which the header carries."""

    name: str
    shape: Shape
    value: float


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tensors that become checkpoint tensors of the given shapes through one transform, and constants beside them."""

    tensors: tuple[str, ...]
    checkpoint: tuple[str, ...]
    shapes: tuple[Shape, ...]
    transform: Transform
    role: Role
    constants: tuple[Constant, ...] = ()

    @property
    def outputs(self) -> list[tuple[str, Shape]]:
        """All that comes of it: checkpoint names with their shapes."""
        made = list(zip(self.checkpoint, self.shapes, strict=True))
        return made + [(constant.name, constant.shape) for constant in self.constants]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tensor that carries no parameter, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A tensor with no destination, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A parameter (checkpoint tensor when not traced) that no tensor fills, or fills in part."""

    parameter: str
    role: Role
    reason: str


@dataclass(frozen=True, slots=True)
class Phantom:
    """A row of the expected map, expanded over the blocks, that no tensor in the file matches."""

    tensor: str
    checkpoint: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Mismatched:
    """A tensor whose shape or type conflicts with its destination."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something a person should know that is no fault of the mapping. Codes are listed in docs/audit.md."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """A parameter that a checkpoint tensor is written to; `shard` and `expert` as vLLM's weight loaders name them."""

    name: str
    shard: str | int | None = None
    expert: int | None = None
    columns: int | None = None
    """Columns that this rank takes of the checkpoint tensor, when it takes fewer than all (a row-parallel layer)."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the vLLM model: how many of its elements the checkpoint writes."""

    shape: Shape
    dtype: str
    written: int
    problem: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every element is written exactly once."""
        return self.problem is None


@dataclass(frozen=True, slots=True)
class Module:
    """A layer that asks vLLM for a quantisation method, and so can hold packed weights: linear, embedding, experts."""

    kind: str
    prefixes: tuple[str, ...]
    """The names it asks under: its own, and those of heads that take an embedding's place by being tied to it."""
    problem: str | None = None
    """Why the packed layers cannot stand in for this one."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What the packed layers of this environment can do: the ggml types with kernels, or why there are none."""

    types: frozenset[str] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """What one vLLM model's own load_weights does with the checkpoint tensors that are meant for it."""

    model_class: str
    """Qualified name: module and class."""
    parameters: Mapping[str, Parameter]
    uses: Mapping[str, tuple[ParameterUse, ...]]
    unused: Mapping[str, str]
    """Checkpoint tensor -> why the model took nothing from it."""
    refused: Mapping[str, str]
    """Checkpoint tensor -> the error of its weight loader."""
    deferred: Mapping[str, int]
    """Module that is not allocated, since the file does not carry it and the target's is shared -> bytes saved."""
    rewritten: frozenset[str] = frozenset()
    """Checkpoint tensors whose values the model's load_weights computes with before they are written."""
    modules: Mapping[str, Module] = field(default_factory=dict)
    """By their path in the model; only where packed storage was asked about."""

    @property
    def class_name(self) -> str:
        """The class without its module."""
        return self.model_class.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What vLLM does with the plan's checkpoint tensors, target and draft."""

    vllm: str
    device: str
    target: ModelTrace
    draft: ModelTrace | None = None
    draft_names: frozenset[str] = frozenset()
    """Checkpoint tensors that vLLM's get_spec_layer_idx_from_weight_name gives to the draft."""
    draft_error: str | None = None
    """Why this vLLM cannot build the draft's model; the file's draft blocks are then not used."""
    draft_flags: Mapping[str, bool | int | str | None] = field(default_factory=dict)
    """Flags as they stand on the draft's config after vLLM's hf_config_override; None when they did not arrive."""
    tensor_parallel: int = 1
    expert_parallel: bool = False
    packing: Packing | None = None
    """Only where packed storage was asked about."""

    def model(self, role: Role) -> ModelTrace | None:
        """The trace of the model with this role."""
        return self.target if role is Role.TARGET else self.draft


@dataclass(frozen=True, slots=True)
class StorageGroup:
    """The tensors of one vLLM layer, and whether it holds them packed; bytes are those of one rank."""

    role: Role
    module: str
    tensors: tuple[str, ...]
    types: tuple[str, ...]
    packed: bool
    reason: str
    nbytes: int
    dense_nbytes: int
    layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Where packed: vLLM's prefix -> shard id as text ("" for the whole) -> ggml type."""


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """One decision per layer that has quantised tensors; `asked` is what the user said."""

    asked: str
    groups: tuple[StorageGroup, ...] = ()
    note: str = ""
    """What holds for the whole model, when something does."""

    def packed_tensors(self, role: Role) -> frozenset[str]:
        """The GGUF tensors that this model holds packed."""
        return frozenset(name for g in self.groups if g.packed and g.role is role for name in g.tensors)

    def layers(self, role: Role) -> dict[str, Mapping[str, str]]:
        """vLLM's prefixes of the packed layers -> shard id as text -> ggml type."""
        found: dict[str, Mapping[str, str]] = {}
        for group in self.groups:
            if group.packed and group.role is role:
                found.update(group.layers)
        return found


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What reports say of a tensor: ggml type name, shape in numpy order, bytes in the file."""

    ggml_type: str
    shape: Shape
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What reports say of the checkpoint."""

    path: str
    architecture: str
    name: str
    splits: int
    nbytes: int
    blocks: int
    draft_blocks: int
    tensors: Mapping[str, TensorFacts]
    mmproj: str | None = None
    """The file that the vision tower comes from."""

    @property
    def at_hand(self) -> bool:
        """Whether `ggufmap serve` has the weights or can download them: those of other servers it cannot."""
        return "://" not in self.path or self.path.startswith("hf://")


@dataclass(frozen=True, slots=True)
class StockMap:
    """gguf-py's own name map against the file: entries, tensors without one, entries without a tensor."""

    gguf: str
    entries: int
    unmapped: tuple[str, ...]
    phantom: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inferred:
    """That the rows are no family's but inferred: from what, and the text of a row file to start from."""

    basis: str
    rows: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every tensor goes, and everything that does not fit. A plan with problems is never streamed."""

    model: ModelFacts
    model_class: str
    assignments: tuple[Assignment, ...]
    skipped: tuple[Skipped, ...] = ()
    unmapped: tuple[Unmapped, ...] = ()
    missing: tuple[Missing, ...] = ()
    phantom: tuple[Phantom, ...] = ()
    mismatched: tuple[Mismatched, ...] = ()
    warnings: tuple[Warned, ...] = ()
    trace: TraceResult | None = None
    stock: StockMap | None = None
    storage: StoragePlan | None = None
    inferred: Inferred | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is unmapped, missing or mismatched, by rows that are a family's own."""
        return not (self.unmapped or self.missing or self.mismatched or self.inferred)

    def problems(self) -> list[str]:
        """All problems as one line each, in a stable order."""
        return (
            [f"unmapped {x.tensor}: {x.reason}" for x in self.unmapped]
            + [f"missing {x.parameter}: {x.reason}" for x in self.missing]
            + [f"mismatched {x.tensor}: {x.reason}" for x in self.mismatched]
        )
