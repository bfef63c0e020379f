"""Infer the rows of an unknown family: gguf-py's names for its tensors, tried on the vLLM class that it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ggufmap.archs import Architecture, Rule
from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.mapping.infer import choose, find_patterns, inferred
from ggufmap.mapping.layout import layout
from ggufmap.mapping.plan import Inferred
from ggufmap.mapping.rowfile import row_file
from ggufmap.modeldir.config import ModelConfig, build_config
from ggufmap.modeldir.guess import guess_config
from ggufmap.target.aliases import aliases_version, tensor_aliases
from ggufmap.target.client import Probed, probe
from ggufmap.target.compat import vllm_version
from ggufmap.target.devices import World

_UNPROVEN = "names and shapes only: permuted rows, norms stored plus one and other changes of values do not show"


@dataclass(frozen=True, slots=True)
class Inference:
    """A row set that was guessed, the config that goes with it, and the account of it."""

    architecture: Architecture
    config: ModelConfig
    inferred: Inferred


def infer(
    checkpoint: Checkpoint,
    *,
    hf_config: Path | None = None,
    model_class: str | None = None,
    offline: bool = False,
    world: World | None = None,
) -> Inference:
    """Rows for `checkpoint`, whose architecture has none.

    The vLLM class is `model_class`, else that of a given config.json, else the one called like the architecture. With
    `offline` there is no class to ask: the first alias of each tensor is taken.

    Raises UsageError when vLLM has no such class, MissingDependencyError when it cannot build it.
    """
    unknown = inferred(checkpoint.architecture)
    unknown = replace(unknown, config=guess_config(checkpoint, unknown))
    config = build_config(checkpoint, unknown, hf_config)
    patterns = find_patterns(checkpoint, layout(checkpoint, unknown), tensor_aliases())
    given = config.folder is not None
    wanted = model_class or _architecture_of(config.values, checkpoint.architecture, given)
    found = None
    if not offline:
        stages = [[[(c.name, c.shape) for c in stage] for stage in pattern.stages] for pattern in patterns]
        found = probe(config.values if given else _nameless(config.values), wanted, stages, world)
    elif given or model_class:
        found = Probed(wanted, str(config.values["model_type"]), {})
    chosen = choose(patterns, None if offline or found is None else found.taken)
    present = tuple(skip for skip in unknown.skips if skip.tensor in checkpoint.tensors)
    architecture = replace(unknown, rules=tuple(rules[0] for rules in chosen.values()), skips=present)
    if found is not None:
        architecture = replace(architecture, model_class=found.model_class, model_type=found.model_type)
        names: dict[str, JsonValue] = {"architectures": [found.model_class], "model_type": found.model_type}
        config = replace(config, values={**config.values, **names})
    basis = _basis(architecture, offline)
    doc = f"rows inferred by ggufmap, to be checked against the converter. They are {basis}."
    return Inference(architecture, config, Inferred(basis, row_file(architecture, doc, _remarks(chosen))))


def _architecture_of(values: Mapping[str, JsonValue], architecture: str, given: bool) -> str:
    names = values.get("architectures")
    return str(names[0]) if given and isinstance(names, list) and names else architecture


def _nameless(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in values.items() if key not in ("architectures", "model_type")}


def _remarks(chosen: Mapping[str, tuple[Rule, ...]]) -> dict[str, str]:
    """Other names that fit a tensor as well as the chosen one."""
    remarks = {}
    for tensor, (_, *others) in chosen.items():
        if others:
            remarks[tensor] = "or " + ", ".join(dict.fromkeys(rule.checkpoint[0] for rule in others))
    return remarks


def _basis(architecture: Architecture, offline: bool) -> str:
    source = aliases_version()
    if offline:
        return f"the first alias that {source} has for each tensor, tried on nothing ({_UNPROVEN})"
    return f"those aliases of {source} that vLLM {vllm_version()}'s {architecture.model_class} takes ({_UNPROVEN})"
