"""What the tests of changed files share: plans, configs and values without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from support import gguf_edit
from support.gguf_edit import Edited

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Plan, resolve
from ggufmap.modeldir.config import ModelConfig, config_from_header
from ggufmap.stream import stream

Change = Callable[[Edited], object]


def changed(path: Path, out: Path, change: Change) -> Path:
    """A copy of the file at `path` with something changed; the copy."""
    file = gguf_edit.read(path)
    change(file)
    return file.write(out)


def planned(path: Path, draft: Path | None = None) -> Plan:
    """The plan by the rows alone."""
    with open_checkpoint(path, draft=draft) as checkpoint:
        return resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))


def config(path: Path, draft: Path | None = None) -> ModelConfig:
    """The config from the header."""
    with open_checkpoint(path, draft=draft) as checkpoint:
        return config_from_header(checkpoint, find_architecture(checkpoint.architecture, str(path)))


def loaded(path: Path, draft: Path | None = None) -> dict[str, torch.Tensor]:
    """Every checkpoint tensor, float32 where the file is quantised."""
    with open_checkpoint(path, draft=draft) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))
        return dict(stream(plan, checkpoint, torch.float32))


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """The same names with the same values."""
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def codes(plan: Plan) -> list[str]:
    """The codes of the plan's warnings."""
    return [warning.code for warning in plan.warnings]


def made_from(plan: Plan) -> dict[str, str]:
    """Tensor -> the one checkpoint tensor it becomes, or the first of many."""
    return {name: a.checkpoint[0] for a in plan.assignments for name in a.tensors}
