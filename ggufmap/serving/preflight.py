"""Preflight: open, resolve and (where vLLM is at hand) trace a model: what audit prints and `serve` gates on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ggufmap.archs import Architecture, find_architecture
from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import UnknownArchitectureError, UsageError
from ggufmap.mapping import Plan, resolve
from ggufmap.mapping.plan import Warned
from ggufmap.mapping.storage import Storage
from ggufmap.modeldir.config import ModelConfig, build_config
from ggufmap.remote import locate, open_model
from ggufmap.remote.locate import Given
from ggufmap.serving.infer import infer
from ggufmap.serving.settle import settle, unsettled
from ggufmap.serving.stages import announce, stage
from ggufmap.target.client import vllm_available
from ggufmap.target.devices import World
from ggufmap.target.stock import stock_map


@dataclass(frozen=True, slots=True)
class Preflight:
    """An open checkpoint with its plan and config. The caller closes `checkpoint`."""

    checkpoint: Checkpoint
    architecture: Architecture
    config: ModelConfig
    plan: Plan


def preflight(
    model: Given,
    *,
    hf_config: Path | None = None,
    draft: Given | None = None,
    mmproj: Given | None = None,
    offline: bool = False,
    stock: bool = False,
    world: World | None = None,
    storage: Storage = Storage.AUTO,
    online: str | None = None,
    infer_unknown: bool = False,
    model_class: str | None = None,
) -> Preflight:
    """Resolve `model`, and trace the plan through vLLM unless `offline` or vLLM is absent (a warning says so).

    Files are paths or references (`ggufmap/remote/`).
    `stock` adds what gguf-py's own name map would have done. `world` says for which GPU, and for a rank of how many,
    vLLM's classes are traced. `storage` is what is asked for, `online` the quantisation that vLLM does itself at load.
    With `infer_unknown`, a family without rows gets inferred ones (`model_class` says which vLLM class it is); the plan
    then says so and is never `ok`.

    Raises GgufmapError kinds for unreadable files, unknown families, bad configs, a vLLM that cannot build the model.
    """
    model = locate(model)
    with stage(f"header of {model}"):
        checkpoint = open_model(model, draft=draft, mmproj=mmproj, look_beside=True)
    try:
        untraced = not offline and world is None and not vllm_available()
        offline = offline or untraced
        try:
            with stage("config"):
                architecture = find_architecture(checkpoint.architecture, str(checkpoint.path))
                config, inferred = build_config(checkpoint, architecture, hf_config), None
        except UnknownArchitectureError:
            if not infer_unknown:
                raise
            with stage("inference of rows"):
                found = infer(checkpoint, hf_config=hf_config, model_class=model_class, offline=offline, world=world)
            architecture, config, inferred = found.architecture, found.config, found.inferred
        with stage(f"rows of {architecture.names[0]}"):
            plan = replace(resolve(checkpoint, architecture), inferred=inferred)
        warnings = [*config.warnings, *_file_warnings(checkpoint, untraced=untraced)]
        if not offline:
            _check_ranks(config, world or World())
            flags = {row.key: row.value for row in architecture.draft_flags}
            announce("Asking vLLM where every tensor goes (about ten seconds; --offline skips it) ...")
            plan = settle(plan, config.values, flags, world or World(), storage, online)
            warnings += _draft_warnings(plan, config)
        else:
            plan = replace(plan, storage=unsettled(storage))
        if stock:
            with stage("gguf-py's own map"):
                plan = replace(plan, stock=stock_map(plan, config.values))
        return Preflight(checkpoint, architecture, config, replace(plan, warnings=(*plan.warnings, *warnings)))
    except BaseException:
        checkpoint.close()
        raise


def _file_warnings(checkpoint: Checkpoint, *, untraced: bool) -> list[Warned]:
    warnings = []
    if gaps := sum(split.header.gap_bytes for split in checkpoint.splits):
        warnings.append(Warned("W104", f"{gaps} bytes between tensors belong to none"))
    if untraced:
        warnings.append(Warned("W105", "vLLM is not installed here: checked by the rows alone, not traced"))
    return warnings


def _check_ranks(config: ModelConfig, world: World) -> None:
    """Raise UsageError where vLLM would refuse the number of ranks, seconds later and in its own words."""
    heads, ranks = config.text.get("num_attention_heads"), world.tensor_parallel
    if isinstance(heads, int) and heads % ranks:
        fitting = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise UsageError(
            f"{ranks} tensor-parallel ranks cannot share the model's {heads} attention heads evenly",
            hint=f"By its heads it can be split over {fitting}.",
        )


def lost_flags(plan: Plan, config: ModelConfig) -> dict[str, JsonValue]:
    """Draft flags that the written config has and that vLLM's hf_config_override did not carry to the draft."""
    found = {} if plan.trace is None else plan.trace.draft_flags
    return {key: config.text[key] for key, value in found.items() if value != config.text.get(key)}


def _draft_warnings(plan: Plan, config: ModelConfig) -> list[Warned]:
    if plan.trace is not None and plan.trace.draft_error is not None:
        why = f"this vLLM cannot build the draft ({plan.trace.draft_error}): its blocks are not used"
        return [Warned("W114", why)]
    return [
        Warned("W113", f"this vLLM loses {key}={value!r} on the way to the draft's config; serve passes it explicitly")
        for key, value in lost_flags(plan, config).items()
    ]
