"""What to do when the command line is not understood; a command without its MODEL says what a model may be."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ggufmap.errors import GgufmapError

_LISTED = 5


def remedy(refusal: Any) -> str:
    """The hint for an exception of the parser: usage and where the help is, or what MODEL may be."""
    context = refusal.ctx if hasattr(refusal, "ctx") else None
    if context is None:
        return "See ggufmap --help."
    parts = [context.get_usage(), f"All of it: {context.command_path} --help"]
    if getattr(getattr(refusal, "param", None), "name", None) == "model" and not refusal.message:
        parts = [_what_a_model_is(context.command_path, Path()), *parts]
    return "\n".join(parts)


def _what_a_model_is(command: str, folder: Path) -> str:
    """What MODEL may be, with the command to type for the models in `folder`."""
    lines = ["MODEL is a .gguf file, any file of a split set, a folder with one model, hf://ORG/REPO:TAG or a URL:"]
    found = _models(folder)
    examples = found or ["model.gguf", "model-00001-of-00010.gguf", "models/gemma/"]
    lines += [f"  {command} {shlex.quote(name)}" for name in examples[:_LISTED]]
    if len(found) > _LISTED:
        lines.append(f"  ... and {len(found) - _LISTED} more in this folder")
    return "\n".join(lines)


def _models(folder: Path) -> list[str]:
    """The models in `folder`, by their first files; empty where it cannot be listed."""
    from ggufmap.checkpoint.splits import models

    try:
        return [file.name for file in models(folder)]
    except GgufmapError:
        return []
