"""What the benchmark of a load times, and what it does before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import resolve
from ggufmap.stream import measure as measuring
from ggufmap.stream.lazy import LazyTensor


def test_torch_s_imports_are_no_part_of_a_load(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come with the first operation on a lazy tensor; this file begins with a vector, which is none."""
    before: list[list[bool]] = []

    def watched(*arguments: Any) -> Iterator[tuple[str, torch.Tensor]]:
        before.append([])
        for name, tensor in real(*arguments):
            before[-1].append(isinstance(tensor, LazyTensor))
            yield name, tensor

    real = measuring.stream
    monkeypatch.setattr(measuring, "stream", watched)
    with open_checkpoint(gemma) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(gemma)))
        figures = measuring.measure(plan, checkpoint, torch.bfloat16, 64 << 20, most=179 << 20)
    warmed, loaded = before
    assert warmed == [True]
    assert loaded[:2] == [False, True]
    assert figures.stage_decode_s > 0 and figures.stored_bytes <= 179 << 20
