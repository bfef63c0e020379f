"""Tiny checkpoints of families that transformers has no class for: from a config and a table of names and shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support import tiny_tokenizers
from support.conformance import Dtype, values

Shapes = dict[str, tuple[int, ...]]


def writer(
    seed: str, config: Mapping[str, Any], shapes: Shapes, tokenizer: str = "qwen"
) -> Callable[[Path, Dtype], None]:
    """A function that writes the checkpoint into a folder, in a dtype: every value random and exact in bfloat16."""

    def write(folder: Path, dtype: Dtype) -> None:
        import torch
        from safetensors.torch import save_file

        stored = {
            name: values(f"{seed}/{name}", shape).to(getattr(torch, dtype)).contiguous()
            for name, shape in sorted(shapes.items())
        }
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=1))
        tiny_tokenizers.WRITERS[tokenizer](folder)

    return write


def below(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """The shapes, with their names below `prefix`."""
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def gated(prefix: str, hidden: int, width: int) -> Shapes:
    """A gated MLP."""
    both = {f"{prefix}.{part}_proj.weight": (width, hidden) for part in ("gate", "up")}
    return {**both, f"{prefix}.down_proj.weight": (hidden, width)}


def attention(hidden: int, heads: int, kv_heads: int, size: int, v_size: int | None = None) -> Shapes:
    """Grouped attention."""
    value = size if v_size is None else v_size
    return {
        "self_attn.q_proj.weight": (heads * size, hidden),
        "self_attn.k_proj.weight": (kv_heads * size, hidden),
        "self_attn.v_proj.weight": (kv_heads * value, hidden),
        "self_attn.o_proj.weight": (hidden, heads * value),
    }


def norms(hidden: int, *names: str) -> Shapes:
    """Norms of the hidden size."""
    return {f"{name}.weight": (hidden,) for name in names}


def outside(hidden: int, vocab: int = tiny_tokenizers.VOCAB_SIZE) -> Shapes:
    """Embedding, final norm, head."""
    return {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
