"""A multimodal projector in a file of its own (llama.cpp's `--mmproj` conversion): the vision tower of a text model.

Its header has `clip.*` keys, its tensors have names that no text model uses (`v.*`, `mm.*`, `a.*`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.checkpoint.tensor import Tensor
from ggufmap.errors import UsageError

_ARCHITECTURE = "clip"
_SIZE = "clip.vision.projection_dim"


def projectors_beside(model: Path) -> list[Path]:
    """The other `*mmproj*.gguf` files in the folder of `model`, sorted; none where it cannot be listed."""
    try:
        files = sorted(model.parent.iterdir())
    except OSError:
        return []
    return [f for f in files if f.suffix.lower() == ".gguf" and "mmproj" in f.name.lower() and f.name != model.name]


_WANTED = "--mmproj takes the mmproj-*.gguf file that was converted from the same model."


def projector_type(projector: Metadata) -> str:
    """What llama.cpp calls the way from the vision tower into the text model (`gemma3`, `qwen3vl_merger`)."""
    return projector.string("clip.projector_type", projector.string("clip.vision.projector_type", "unknown"))


def check_projector(model: Metadata, projector: Metadata) -> None:
    """Raise UsageError unless `projector` is one and ends in vectors of the text model's size."""
    found = projector.string("general.architecture")
    if found != _ARCHITECTURE:
        raise UsageError(
            f"{projector.file}: is a {found} model, not a multimodal projector ({_ARCHITECTURE})", hint=_WANTED
        )
    key = f"{model.string('general.architecture')}.embedding_length"
    size = projector.integer(_SIZE, 0)
    if size and size != model.integer(key):
        raise UsageError(
            f"{projector.file}: {_SIZE} is {size}, the model's {key} is {model.integer(key)}: not its projector",
            hint=_WANTED,
        )


def check_names(model: Mapping[str, Tensor], projector: Mapping[str, Tensor], file: str) -> None:
    """Raise UsageError when a tensor of the projector is also the model's."""
    both = sorted(set(model).intersection(projector))
    if both:
        raise UsageError(f"{file}: {len(both)} tensors are also in the model's file (first: {both[0]})", hint=_WANTED)
