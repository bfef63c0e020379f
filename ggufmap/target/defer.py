"""Deferred vocabulary modules: a draft's head and embedding are not allocated when the file does not carry them.

vLLM shares the target's into every MTP draft after loading (0.32.0 v1/spec_decode/llm_base_proposer.py,
_maybe_share_embeddings and _maybe_share_lm_head), so an own copy would only be allocated, left unfilled and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_HEADS = ("shared_head.head", "shared_head.output")  # the second is Step 3.5's name for it


@dataclass(frozen=True, slots=True)
class Deferral:
    """Which kinds of vocabulary module are deferred."""

    head: bool
    embedding: bool


@dataclass(slots=True)
class Deferred:
    """Modules that were built without memory."""

    modules: list[nn.Module] = field(default_factory=list)

    def detach(self, model: nn.Module) -> dict[str, int]:
        """Put None in the place of each deferred module of `model`; module name -> bytes not allocated."""
        ids = {id(module) for module in self.modules}
        saved: dict[str, int] = {}
        for parent_name, parent in list(model.named_modules()):
            for name, child in list(parent.named_children()):
                if id(child) in ids:
                    full = f"{parent_name}.{name}" if parent_name else name
                    saved[full] = sum(p.numel() * p.element_size() for p in child.parameters())
                    setattr(parent, name, None)
        return saved


@contextmanager
def deferring(what: Deferral) -> Iterator[Deferred]:
    """While active, vLLM's vocabulary modules of the deferred kinds are built on the meta device."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    found = Deferred()
    original = VocabParallelEmbedding.__init__

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        if what.head if isinstance(self, ParallelLMHead) else what.embedding:
            with torch.device("meta"):
                original(self, *args, **kwargs)
            found.modules.append(self)
        else:
            original(self, *args, **kwargs)

    VocabParallelEmbedding.__init__ = build
    try:
        yield found
    finally:
        VocabParallelEmbedding.__init__ = original


def deferral_for(names: list[str]) -> Deferral:
    """What a draft made of these checkpoint tensors (dense or packed) lacks."""
    modules = [name.rpartition(".")[0] for name in names]
    return Deferral(
        head=not any(module.endswith(_HEADS) for module in modules),
        embedding=not any(module.endswith("embed_tokens") for module in modules),
    )
