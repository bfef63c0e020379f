"""Row sets per `general.architecture`: a lazy table from the GGUF name to the family file that holds it."""

from __future__ import annotations

import difflib
import importlib

from ggufmap.archs.base import Architecture, Rule, Skip
from ggufmap.errors import UnsupportedError

_TABLE: dict[str, tuple[str, str]] = {
    "deepseek2": ("deepseek", "DEEPSEEK2"),
    "deepseek32": ("deepseek", "DEEPSEEK32"),
    "gemma3": ("gemma", "GEMMA3"),
    "gemma3_text": ("gemma", "GEMMA3"),
    "glm-dsa": ("glm", "GLM_DSA"),
    "glm4moe": ("glm", "GLM4_MOE"),
    "glm5-next": ("glm", "GLM5_NEXT"),
    "glm5next": ("glm", "GLM5_NEXT"),
    "granite": ("granite", "GRANITE"),
    "granitehybrid": ("granite", "GRANITE_HYBRID"),
    "granitemoe": ("granite", "GRANITE_MOE"),
    "llama": ("llama", "LLAMA"),
    "mamba": ("mamba", "MAMBA"),
    "mamba2": ("mamba", "MAMBA2"),
    "qwen2": ("qwen", "QWEN2"),
    "qwen3": ("qwen", "QWEN3"),
}

_SIDE_FILES = {
    "clip": "a multimodal projector (mmproj), which goes beside a text model",
    "mmproj": "a multimodal projector (mmproj), which goes beside a text model",
}


def known_architectures() -> list[str]:
    """All architecture strings with rows, sorted."""
    return sorted(_TABLE)


def find_architecture(name: str, file: str) -> Architecture:
    """The row set for `general.architecture` `name`.

    Raises UnsupportedError for side files and for families without rows, naming the known ones and the nearest.
    """
    if name in _SIDE_FILES:
        raise UnsupportedError(
            f"{file}: is {_SIDE_FILES[name]}, not a model", hint="Give the text model's .gguf file instead."
        )
    entry = _TABLE.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, _TABLE, n=1, cutoff=0.6)
        nearest = f" (nearest: {near[0]})" if near else ""
        raise UnsupportedError(
            f"{file}: architecture {name!r} is unknown{nearest}",
            hint=f"Known architectures: {', '.join(known_architectures())}.",
        )
    module, attribute = entry
    architecture: Architecture = getattr(importlib.import_module(f"ggufmap.archs.{module}"), attribute)
    return architecture


__all__ = ["Architecture", "Rule", "Skip", "find_architecture", "known_architectures"]
