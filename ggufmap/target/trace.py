"""Trace: build the real vLLM model class on the meta device and let its own load_weights say where names end.

Needs vLLM; runs in a process of its own (see `worker.py`), since vLLM keeps process-wide state.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ggufmap.mapping.plan import ModelTrace, Parameter, ParameterUse, TraceResult
from ggufmap.target import compat, simulate
from ggufmap.target.defer import deferral_for, deferring
from ggufmap.target.devices import World, parse_device
from ggufmap.target.ledger import Ledger
from ggufmap.target.ranks import init_world

_RESTARTS = 64
_SIMULATED_DEVICES = 8
_SHOWN = 300
_Names = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Request:
    """What to trace: a folder with config.json, the checkpoint tensors per role, and flags to look for."""

    model_dir: Path
    target: _Names
    draft: _Names
    draft_flags: Sequence[str]
    world: World


def trace_models(request: Request) -> TraceResult:
    """Trace the target's and the draft's checkpoint tensors through the vLLM models that config.json describes.

    A draft that vLLM cannot build is left out, with vLLM's words. Raises whatever vLLM raises when it cannot build the
    target.
    """
    from vllm.config import set_current_vllm_config

    world = request.world
    capability = parse_device(world.device) if world.device else None
    if capability is not None:
        simulate.enter(capability, devices=max(world.tensor_parallel, _SIMULATED_DEVICES))
    else:
        compat.look_at_models_here()
        compat.stand_in_for_torchvision()
    config, draft_error = _engine_config(request.model_dir, world, draft_blocks=bool(request.draft))
    if compat.device_name() == "cpu":
        compat.allow_sparse_attention_on_cpu()
    if world.expert_parallel:
        compat.keep_expert_maps_real()
    draft = None
    flags: dict[str, Any] = {}
    speculative = config.speculative_config
    with set_current_vllm_config(config):
        init_world(config)
        if capability is not None:
            simulate.init_workspace()
        target_model = _build(config, config.model_config)
        target = trace_names(target_model, request.target)
        draft_names = _draft_names(target_model, config.model_config.hf_text_config, request)
        if speculative is not None:
            hf_config = speculative.draft_model_config.hf_config
            flags = {flag: getattr(hf_config, flag, None) for flag in request.draft_flags}
            draft, draft_error = _trace_draft(config, request.draft)
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
    )


def _trace_draft(config: Any, names: _Names) -> tuple[ModelTrace | None, str | None]:
    """The draft's trace, or why vLLM cannot build its class: the target runs without one."""
    draft_config = config.speculative_config.draft_model_config
    try:
        with deferring(deferral_for([name for name, _ in names])) as deferred:
            model = _build(config, draft_config, prefix="draft")
    except Exception as e:  # a class may fail in any way while it is built
        return None, f"{', '.join(draft_config.hf_config.architectures or ())}: {_in_one_line(e)}"
    return trace_names(model, names, deferred.detach(model)), None


def _draft_names(target: nn.Module, text_config: Any, request: Request) -> frozenset[str]:
    """The checkpoint names that vLLM keeps from the target: by its rule for layers above the last one, else (`mtp.*` of
    Qwen, and whatever else a family calls its draft) because the target's load_weights takes nothing from them.
    """
    spec_layer = compat.spec_layer_function()
    ruled = {name for name, _ in (*request.target, *request.draft) if spec_layer(text_config, name) is not None}
    others = [(name, shape) for name, shape in request.draft if name not in ruled]
    taken = trace_names(target, others).uses if others else {}
    return frozenset(ruled | {name for name, _ in others if name not in taken})


def _engine_config(model_dir: Path, world: World, draft_blocks: bool) -> tuple[Any, str | None]:
    """vLLM's configuration; where it makes none with a draft, one without, and why."""
    if not draft_blocks:
        return _configuration(model_dir, world, None), None
    try:
        return _configuration(model_dir, world, {"method": "mtp", "num_speculative_tokens": 1}), None
    except Exception as e:  # vLLM's checks raise all kinds; a fault of the target is raised again below
        return _configuration(model_dir, world, None), _in_one_line(e)


def _configuration(model_dir: Path, world: World, speculative: dict[str, Any] | None) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(model_dir),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        dtype="bfloat16",
        tensor_parallel_size=world.tensor_parallel,
        enable_expert_parallel=world.expert_parallel,
        distributed_executor_backend="mp" if world.tensor_parallel > 1 else None,
        speculative_config=speculative,
    ).create_engine_config()


def _build(config: Any, model_config: Any, prefix: str = "") -> nn.Module:
    """A vLLM model with every parameter on the meta device (no memory, no weights)."""
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with (
        set_default_torch_dtype(torch.bfloat16),
        torch.device("meta"),
        simulate.cuda_to_meta(),
        simulate.ReadsOfMeta(),
    ):
        model: nn.Module = initialize_model(vllm_config=config, model_config=model_config, prefix=prefix)
    _to_meta(model)
    return model


def _to_meta(model: nn.Module) -> None:
    """Move what a class allocates for real whatever the default device (vLLM's Transformers classes: norms, biases)."""
    moved: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.is_meta:
                continue
            if parameter not in moved:
                moved[parameter] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
                moved[parameter].__dict__.update(parameter.__dict__)
            module._parameters[name] = moved[parameter]


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
        run = _Run({**parameters, **buffers})
        # Made before the ledger looks at every operation: there are as many of them as of anything else.
        left = [(n, torch.empty(s, device="meta", dtype=torch.bfloat16)) for n, s in names if n not in unused]
        with _wrapped_loaders(parameters, run), torch.no_grad(), simulate.cuda_to_meta(), run.ledger:
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
    )


class _Run:
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


class _wrapped_loaders:  # noqa: N801 - used as a context manager function
    """Give every parameter a weight loader that notes its arguments, runs the real one and keeps its error."""

    def __init__(self, parameters: dict[str, nn.Parameter], run: _Run) -> None:
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


def _noting(name: str, original: Any, run: _Run) -> Any:
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


def _in_one_line(error: Exception) -> str:
    """Kind and message, cut at a length that a report can show."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN]


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return text or type(error).__name__


def _parameter(ledger: Ledger, name: str, tensor: torch.Tensor) -> Parameter:
    written, problem = ledger.problem(name, tensor)
    return Parameter(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), written, problem)
