"""Gather the facts: of the packages, of the machine, of vLLM (in its own process), and of the model."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ggufmap.checkpoint.source import LocalFile
from ggufmap.doctor import packages
from ggufmap.doctor.disk import read_speed
from ggufmap.doctor.facts import Attention, Engine, Environment, Facts, Gpu, Model, Plugins, Untraced
from ggufmap.doctor.machine import host
from ggufmap.errors import MissingDependencyError
from ggufmap.mapping.storage import Storage
from ggufmap.native import native
from ggufmap.remote.locate import Given
from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.target.client import survey_environment, survey_model
from ggufmap.target.devices import World
from ggufmap.target.words import last_words


def gather(
    model: Given | None,
    *,
    world: World,
    hf_config: Path | None = None,
    draft: Given | None = None,
    mmproj: Given | None = None,
    storage: Storage = Storage.AUTO,
) -> Facts:
    """Everything that the checks look at. The model's checkpoint is closed again.

    Raises GgufmapError kinds for a model that cannot be read or that no rows and no vLLM class fit.
    """
    look = None
    untraced = None
    if model is not None:  # first: where the file cannot be read, nobody waits for vLLM
        look = partial(preflight, model, hf_config=hf_config, draft=draft, mmproj=mmproj, infer_unknown=True)
        untraced = look(offline=True)
        untraced.checkpoint.close()
    facts = Facts(
        python=platform.python_version(),
        packages=packages.installed(),
        conflicts=tuple(packages.conflicts()),
        host=host(),
        environment=_environment(world.device),
        no_compiler=native().why,
        device=world.device,
    )
    if look is None or untraced is None:
        return facts
    found, why = _traced(partial(look, world=world, storage=storage), untraced, facts.environment)
    sources = [split.source for split in untraced.checkpoint.splits]
    paths = [source.path for source in sources if isinstance(source, LocalFile)]
    made = Model(found, world, why, speed=read_speed(paths) if len(paths) == len(sources) else None)
    if why is None:
        made = replace(made, engine=_engine(found, world))
    return replace(facts, model=made)


def _environment(device: str) -> Environment:
    try:
        answer = survey_environment(device)
    except MissingDependencyError as e:
        return Environment(error=e.message)
    plugins = answer.pop("plugins", None)
    return Environment(
        broken=answer.pop("broken"),
        plugins=None if plugins is None else _plugins(plugins),
        torch_archs=tuple(answer.pop("torch_archs", ())),
        gpus=tuple(Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in answer.pop("gpus", ())),
        **answer,
    )


def _plugins(answer: dict[str, Any]) -> Plugins:
    failures = tuple((name, error) for name, error in answer.pop("failures"))
    return Plugins(
        allowed=answer["allowed"],
        entries=tuple(answer["entries"]),
        formats=tuple(answer["formats"]),
        failures=failures,
        fatal=answer["fatal"],
    )


def _traced(
    look: Callable[[], Preflight], untraced: Preflight, environment: Environment
) -> tuple[Preflight, Untraced | None]:
    """The model's preflight, with the trace where vLLM can make one, and otherwise why not."""
    if not environment.usable:
        return untraced, Untraced("vLLM is not usable here", "the findings above say what it lacks")
    try:
        found = look()
    except MissingDependencyError as e:
        return untraced, Untraced(last_words(e.message), e.hint or "`ggufmap audit` says more")
    found.checkpoint.close()
    return found, None


def _engine(found: Preflight, world: World) -> Engine:
    has_draft = found.plan.trace is not None and found.plan.trace.draft is not None
    try:
        answer = survey_model(found.config.values, world, draft=has_draft)
    except MissingDependencyError as e:
        return Engine(error=e.message)
    attention = tuple(Attention(**{**kind, "others": tuple(kind["others"])}) for kind in answer.pop("attention"))
    return Engine(attention=attention, supported_dtypes=tuple(answer.pop("supported_dtypes", ())), **answer)
