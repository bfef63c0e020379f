"""Preflight: open, resolve and (where vLLM is at hand) trace a model: what audit prints and `serve` gates on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ggufmap.archs import Architecture, find_architecture
from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.mapping import Plan, join_trace, resolve
from ggufmap.mapping.plan import Warned
from ggufmap.modeldir.config import ModelConfig, build_config
from ggufmap.target.client import trace, vllm_available


@dataclass(frozen=True, slots=True)
class Preflight:
    """An open checkpoint with its plan and config. The caller closes `checkpoint`."""

    checkpoint: Checkpoint
    architecture: Architecture
    config: ModelConfig
    plan: Plan


def preflight(model: Path, *, hf_config: Path | None = None, offline: bool = False) -> Preflight:
    """Resolve `model`, and trace the plan through vLLM unless `offline` or vLLM is absent (a warning says so).

    Raises GgufmapError kinds for unreadable files, unknown families, bad configs, a vLLM that cannot build the model.
    """
    checkpoint = open_checkpoint(model)
    try:
        architecture = find_architecture(checkpoint.architecture, str(checkpoint.path))
        plan = resolve(checkpoint, architecture)
        config = build_config(checkpoint, architecture, hf_config)
        warnings = list(config.warnings)
        gaps = sum(split.header.gap_bytes for split in checkpoint.splits)
        if gaps:
            warnings.append(Warned("W104", f"{gaps} bytes between tensors belong to none"))
        if not offline and not vllm_available():
            warnings.append(Warned("W105", "vLLM is not installed here: checked by the rows alone, not traced"))
            offline = True
        if not offline:
            plan = join_trace(plan, trace(plan, config.values))
        return Preflight(checkpoint, architecture, config, replace(plan, warnings=(*plan.warnings, *warnings)))
    except BaseException:
        checkpoint.close()
        raise
