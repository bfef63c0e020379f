"""Trace: build the real vLLM model class on the meta device and let its own load_weights say where names end.

Needs vLLM; runs in a process of its own (see `worker.py`), since vLLM keeps process-wide state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ggufmap.mapping.plan import ModelTrace, Packing, Parameter, ParameterUse, Role, TraceResult
from ggufmap.target import compat, packed_layers, simulate
from ggufmap.target.build import build, engine, in_one_line
from ggufmap.target.defer import deferral_for, deferring
from ggufmap.target.devices import World
from ggufmap.target.ledger import Ledger
from ggufmap.target.modules import find_modules
from ggufmap.target.packed_layers import Layers

_RESTARTS = 64
_DRAFT = "draft"  # what the draft's layers are called below, so that they do not meet the target's
_Names = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Request:
    """What to trace: a folder with config.json, the checkpoint tensors per role, and flags to look for."""

    model_dir: Path
    target: _Names
    draft: _Names
    draft_flags: Sequence[str]
    world: World
    ask_packing: bool = False
    """Also say which layers could hold packed weights, and of which types."""
    layers: Mapping[Role, Layers] = field(default_factory=dict)
    """The layers that do; their checkpoint tensors are rows of bytes then."""


def trace_models(request: Request) -> TraceResult:
    """Trace the target's and the draft's checkpoint tensors through the vLLM models that config.json describes.

    A draft that vLLM cannot build is left out, with vLLM's words. Raises whatever vLLM raises when it cannot build the
    target.
    """
    world = request.world
    draft = None
    flags: dict[str, Any] = {}
    with engine(request.model_dir, world, draft_blocks=bool(request.draft)) as (config, draft_error):
        packing = packed_layers.packing() if request.ask_packing else None
        with packed_layers.holding(config, request.layers.get(Role.TARGET)):
            target_model = build(config, config.model_config)
        target = trace_names(target_model, request.target)
        if packing is not None and packing.problem is None:
            target = replace(target, modules=find_modules(config, lambda: build(config, config.model_config)))
        draft_names = _draft_names(target_model, config.model_config.hf_text_config, request)
        if config.speculative_config is not None:
            hf_config = config.speculative_config.draft_model_config.hf_config
            flags = {flag: getattr(hf_config, flag, None) for flag in request.draft_flags}
            draft, draft_error = _trace_draft(config, request, packing)
    return TraceResult(
        vllm=compat.vllm_version(),
        device=world.device or compat.device_name(),
        target=target,
        draft=draft,
        draft_names=draft_names,
        draft_error=draft_error,
        draft_flags=flags,
        tensor_parallel=world.tensor_parallel,
        expert_parallel=world.expert_parallel,
        packing=packing,
    )


def _trace_draft(config: Any, request: Request, packing: Packing | None) -> tuple[ModelTrace | None, str | None]:
    """The draft's trace, or why vLLM cannot build its class: the target runs without one."""
    draft_config, names = config.speculative_config.draft_model_config, request.draft

    def build_draft() -> tuple[nn.Module, dict[str, int]]:
        with deferring(deferral_for([name for name, _ in names])) as deferred:
            made = build(config, draft_config, prefix=_DRAFT)
        return made, deferred.detach(made)

    try:
        with packed_layers.holding(config, request.layers.get(Role.DRAFT), _DRAFT):
            model, saved = build_draft()
    except Exception as e:  # a class may fail in any way while it is built
        return None, f"{', '.join(draft_config.hf_config.architectures or ())}: {in_one_line(e)}"
    found = trace_names(model, names, saved)
    if packing is None or packing.problem is not None:
        return found, None
    return replace(found, modules=find_modules(config, lambda: build_draft()[0], _DRAFT)), None


def _draft_names(target: nn.Module, text_config: Any, request: Request) -> frozenset[str]:
    """The checkpoint names that vLLM keeps from the target: by its rule for layers above the last one, else (`mtp.*` of
    Qwen, and whatever else a family calls its draft) because the target's load_weights takes nothing from them.
    """
    spec_layer = compat.spec_layer_function()
    ruled = {name for name, _ in (*request.target, *request.draft) if spec_layer(text_config, name) is not None}
    others = [(name, shape) for name, shape in request.draft if name not in ruled]
    taken = trace_names(target, others).uses if others else {}
    return frozenset(ruled | {name for name, _ in others if name not in taken})


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers that a checkpoint may fill (Gemma 4's layer_scalar); the others keep what they are built with."""
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta and name not in module._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), buffer


def trace_names(model: nn.Module, names: _Names, deferred: Mapping[str, int] | None = None) -> ModelTrace:
    """Run `model.load_weights` over meta tensors of the given names and shapes; record every write.

    A name that makes load_weights itself fail is set aside with the error, and the run starts over without it.
    """
    parameters = dict(model.named_parameters())
    buffers = dict(_saved_buffers(model))
    unused: dict[str, str] = {}
    for _ in range(_RESTARTS):
        run = Recording({**parameters, **buffers})
        # Made before the ledger looks at every operation: there are as many of them as of anything else.
        left = [(n, torch.empty(s, device="meta", dtype=torch.bfloat16)) for n, s in names if n not in unused]
        with wrapped_loaders(parameters, run), torch.no_grad(), simulate.cuda_to_meta(), run.ledger:
            try:
                model.load_weights(run.feed(left))
                break
            except Exception as e:  # any class may fail in any way on a name that it does not know
                if run.current is None:
                    raise
                unused[run.current] = f"{type(e).__name__}: {_first_line(e)}"
    uses = run.uses
    unused.update((name, "no parameter is written") for name, _ in names if name not in uses and name not in unused)
    for name in (*run.refused, *run.elsewhere):
        unused.pop(name, None)
    written = {use.name for found in uses.values() for use in found}
    tracked = {**parameters, **{name: buffer for name, buffer in buffers.items() if name in written}}
    return ModelTrace(
        model_class=f"{type(model).__module__}.{type(model).__name__}",
        parameters={name: _parameter(run.ledger, name, tensor) for name, tensor in tracked.items()},
        uses={name: tuple(found) for name, found in uses.items()},
        unused=unused,
        refused=run.refused,
        deferred=dict(deferred or {}),
        rewritten=frozenset(run.ledger.rewritten),
    )


class Recording:
    """One pass of load_weights: the ledger plus what the weight loaders were told."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.ledger = Ledger(parameters, provenance=True)
        self.current: str | None = None
        self.refused: dict[str, str] = {}
        self.elsewhere: set[str] = set()
        """Sources that a weight loader declined: experts of another rank."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._labels: dict[tuple[str, str], list[ParameterUse]] = {}

    def feed(self, sources: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """What load_weights is given: the sources, each announced to the ledger when its turn comes."""
        for name, tensor in sources:
            self.ledger.source(name, tensor)
            self.current = name
            self._shapes[name] = tuple(tensor.shape)
            yield name, tensor

    def label(self, source: str | None, use: ParameterUse) -> None:
        """Remember the shard and expert that a weight loader was called with."""
        if source is not None:
            labels = self._labels.setdefault((source, use.name), [])
            if use not in labels:
                labels.append(use)

    @property
    def uses(self) -> dict[str, list[ParameterUse]]:
        """Source -> the parameters written from it, with shard and expert where the loader named them."""
        return {
            source: [
                replace(use, columns=self._columns(source))
                for name in names
                for use in self._labels.get((source, name), [ParameterUse(name)])
            ]
            for source, names in self.ledger.sources.items()
        }

    def _columns(self, source: str) -> int | None:
        """The columns that this rank takes of a matrix, when fewer than all."""
        shape, width = self._shapes[source], self.ledger.widths.get(source)
        return width if len(shape) == 2 and width is not None and width < shape[1] else None


class wrapped_loaders:  # noqa: N801 - used as a context manager function
    """Give every parameter a weight loader that notes its arguments, runs the real one and keeps its error."""

    def __init__(self, parameters: dict[str, nn.Parameter], run: Recording) -> None:
        self._parameters = parameters
        self._run = run
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> None:
        for name, parameter in self._parameters.items():
            original = getattr(parameter, "weight_loader", None)
            if original is not None:
                self._originals[name] = original
                compat.set_weight_loader(parameter, _noting(name, original, self._run))

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            compat.set_weight_loader(self._parameters[name], original)


def _noting(name: str, original: Any, run: Recording) -> Any:
    positions = list(inspect.signature(original).parameters)

    def loader(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(positions, args, strict=False)), **kwargs}
        values = [*args, *kwargs.values()]
        source = next((o for value in values[1:] if (o := run.ledger.origin(value)) is not None), run.current)
        shard = given.get("shard_id", given.get("loaded_shard_id"))
        run.label(source, ParameterUse(name, shard, given.get("expert_id")))
        try:
            taken = original(*args, **kwargs)
            if taken is False and source is not None:
                run.elsewhere.add(source)
            return taken
        except Exception as e:
            if source is not None:
                shape = next((tuple(t.shape) for t in values[1:] if isinstance(t, torch.Tensor)), ())
                run.refused[source] = f"{name} {tuple(args[0].shape)} refuses {source} {shape}: {_first_line(e)}"
            return True if given.get("return_success") else None

    return loader


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return text or type(error).__name__


def _parameter(ledger: Ledger, name: str, tensor: torch.Tensor) -> Parameter:
    written, problem = ledger.problem(name, tensor)
    return Parameter(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), written, problem)
