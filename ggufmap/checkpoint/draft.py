"""A draft in a file of its own (llama.cpp's `--mtp` conversion): its nextn blocks join the trunk's tensor table.

Such a file repeats the embedding, the final norm and the head; the target's are shared instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.checkpoint.tensor import Tensor
from ggufmap.errors import UsageError

_WANTED = "--draft takes the mtp-*.gguf file that was converted from the same model."
_EH_PROJ = re.compile(r"blk\.(\d+)\.nextn\.eh_proj\.weight")


def check_same_model(trunk: Metadata, draft: Metadata) -> None:
    """Raise UsageError unless both headers describe the same architecture and hidden size."""
    architecture = trunk.string("general.architecture")
    found = draft.string("general.architecture")
    if found != architecture:
        raise UsageError(f"{draft.file}: is a draft for {found}, the model is {architecture}", hint=_WANTED)
    key = f"{architecture}.embedding_length"
    if draft.integer(key) != trunk.integer(key):
        raise UsageError(
            f"{draft.file}: {key} is {draft.integer(key)}, the model's is {trunk.integer(key)}: not its draft",
            hint=_WANTED,
        )


def draft_tensors(trunk: Mapping[str, Tensor], draft: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """The nextn blocks' tensors of a draft file.

    Raises UsageError when it has none, when the trunk file has its own, or when the vocabularies differ.
    """
    blocks = {match[1] for name in draft if (match := _EH_PROJ.fullmatch(name))}
    if not blocks:
        raise UsageError(f"{file}: has no draft block (blk.N.nextn.eh_proj.weight)", hint=_WANTED)
    if any(_EH_PROJ.fullmatch(name) for name in trunk):
        raise UsageError(f"{file}: the model's file has draft blocks already", hint="Leave --draft out.")
    for name in ("token_embd.weight", "output.weight"):
        if name in trunk and name in draft and trunk[name].shape != draft[name].shape:
            raise UsageError(
                f"{file}: {name} is {draft[name].shape}, the model's is {trunk[name].shape}: not its draft",
                hint=_WANTED,
            )
    return {name: tensor for name, tensor in draft.items() if name.startswith("blk.") and name.split(".")[1] in blocks}
