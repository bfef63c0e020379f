"""Probe: which vLLM class an unknown family is, and which of many checkpoint names that class takes.

Needs vLLM; runs in the trace's own process (see `worker.py`), since vLLM keeps process-wide state.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ggufmap.mapping.plan import ParameterUse
from ggufmap.target import compat, simulate
from ggufmap.target.build import build, engine
from ggufmap.target.devices import World
from ggufmap.target.trace import Recording, wrapped_loaders

_SUFFIX = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|Model|LM)$")
_NEAR = 5
_ANY_CONFIG = "llama"  # its config class keeps keys that it does not know; vLLM chooses the class by `architectures`
_Names = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Probe:
    """What to find out: `wanted` is the name of a class or of something like it, `stages` are names to try, by
    pattern; a stage is tried when the model takes nothing from those before it.
    """

    model_dir: Path
    config: dict[str, Any]
    wanted: str
    stages: Sequence[Sequence[_Names]]
    world: World


def probe_model(probe: Probe) -> dict[str, Any]:
    """The class with its model type and the names that it takes; or only `near`, classes that the user may mean.

    Raises whatever vLLM raises when it cannot build the model.
    """
    names = compat.model_classes()
    model_class, near = find_class(probe.wanted, list(names))
    if model_class is None:
        return {"near": near}
    model_type = probe.config.get("model_type") or find_model_type(model_class, names[model_class])
    config = {**probe.config, "architectures": [model_class], "model_type": model_type}
    (probe.model_dir / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with engine(probe.model_dir, probe.world) as (engine_config, _):
        model = build(engine_config, engine_config.model_config)
        taken = [entry for stages in probe.stages for entry in _first_that_fits(model, stages)]
    return {"model_class": model_class, "model_type": model_type, "taken": taken}


def find_class(wanted: str, names: Sequence[str]) -> tuple[str | None, list[str]]:
    """The class called `wanted`, or like it but for case, marks and endings (`qwen3moe`: Qwen3MoeForCausalLM); else
    the nearest ones.
    """
    if wanted in names:
        return wanted, []
    stems: dict[str, str] = {}
    for name in sorted(names, key=lambda name: not name.endswith("ForCausalLM")):
        stems.setdefault(plain(_SUFFIX.sub("", name)), name)
    stem = plain(_SUFFIX.sub("", wanted))
    found = stems.get(stem)
    near = difflib.get_close_matches(stem, stems, n=_NEAR, cutoff=0.5)
    return found, [] if found else [stems[name] for name in near]


def find_model_type(model_class: str, known: str | None) -> str:
    """The model type of a class: transformers' own (`known`), one of like name, or one that takes any key."""
    if known is not None:
        return known
    stem = plain(_SUFFIX.sub("", model_class))
    return next((name for name in compat.model_types() if plain(name) == stem), _ANY_CONFIG)


def plain(name: str) -> str:
    """Letters and digits only, in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _first_that_fits(model: nn.Module, stages: Sequence[_Names]) -> list[tuple[str, tuple[int, ...], Any]]:
    for stage in stages:
        if taken := taken_names(model, stage):
            return [(name, shape, [asdict(use) for use in uses]) for (name, shape), uses in taken.items()]
    return []


def taken_names(model: nn.Module, names: _Names) -> dict[tuple[str, tuple[int, ...]], list[ParameterUse]]:
    """Name and shape -> what `model.load_weights` writes from it when it comes alone.

    What it does not take is absent, and so is what it takes only a part of (a fused matrix for one of its halves).
    """
    parameters = dict(model.named_parameters())
    run = Recording(parameters)
    whole: dict[tuple[str, tuple[int, ...]], str] = {}
    with wrapped_loaders(parameters, run), torch.no_grad(), simulate.cuda_to_meta(), run.ledger:
        for name, shape in names:
            source = torch.empty(shape, device="meta", dtype=torch.bfloat16)
            label = f"{name} {shape}"  # one name may be tried in several shapes
            try:
                model.load_weights((name, tensor) for _, tensor in run.feed([(label, source)]))
            except Exception:  # any class may fail in any way on a name that it does not know
                continue
            finally:
                regions = [region for found in run.ledger.regions.values() for region in found]
                run.ledger.regions.clear()
            if sum(region.elements for region in regions if region.copied) >= source.numel():
                whole[name, tuple(shape)] = label
    uses = run.uses
    return {key: uses[label] for key, label in whole.items() if label in uses}
