"""Multi-file checkpoints: from any split, or the folder, to the whole set, and proof that it is whole.

llama.cpp (tools/gguf-split): file names count from 1 (`-00001-of-00003`), `split.no` from 0;
`split.tensors.count` is the total of the whole set; only the first split carries the model's metadata.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ggufmap.checkpoint.header import Header
from ggufmap.checkpoint.source import Place
from ggufmap.errors import FileError, UsageError

SPLIT = re.compile(r"(?P<stem>.*)-(?P<no>\d{1,9})-of-(?P<count>\d{1,9})\.gguf", re.IGNORECASE)
_MAX_SPLITS = 65_535
_SHOWN = 10
DRAFT_PREFIX = "mtp-"  # llama.cpp's name for a separate draft (conversion/glm.py, prepare_metadata)


def model_file(path: Path) -> Path:
    """`path` itself, or the (first) file of the one model in the folder `path`.

    Raises UsageError when a folder holds no model or several.
    """
    # os.path, since Path.is_dir() raises for a folder that may not be entered; opening the file will say so.
    return _only_model(path) if os.path.isdir(path) else path  # noqa: PTH112


def models(folder: Path) -> list[Path]:
    """The (first) file of each model in `folder`: split sets count once, projectors (mmproj) and drafts not at all.

    Raises FileError when the folder cannot be listed.
    """
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".gguf")
    except OSError as e:
        raise FileError(f"{folder}: cannot be listed: {e.strerror}", hint="Check the folder's permissions.") from e
    found: dict[str, Path] = {}
    for file in files:
        if "mmproj" in file.name.lower() or file.name.lower().startswith(DRAFT_PREFIX):
            continue
        match = SPLIT.fullmatch(file.name)
        found.setdefault(f"{match['stem']} of {match['count']}" if match else file.name, file)
    return list(found.values())


def members(path: Place, header: Header) -> list[Place]:
    """All files of the set that `path`, with its parsed `header`, belongs to, in split order.

    Raises FileError when a split is missing (listing them) or the name and the header disagree.
    """
    declared = header.metadata.integer("split.count", 1)
    if not 0 <= declared <= _MAX_SPLITS:
        raise FileError(f"{path}: split.count is {declared}, allowed are 1 to {_MAX_SPLITS}")
    if declared <= 1:
        return [path]
    match = SPLIT.fullmatch(path.name)
    if match is None:
        raise FileError(
            f"{path}: says it is one of {declared} splits, but its name has no -NNNNN-of-NNNNN.gguf part",
            hint="Restore the original file name, so that the other splits can be found.",
        )
    if int(match["count"]) != declared:
        raise FileError(f"{path}: split.count is {declared}, the file name says {int(match['count'])}")
    files = [_member(path, match, no) for no in range(1, declared + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise FileError(
            f"{path}: {len(missing)} of {declared} splits are missing: {shown}",
            hint=f"Put all splits in {path.parent}.",
        )
    return files


def check_set(files: list[tuple[str, Header]]) -> None:
    """Check `split.no`, `split.count`, `split.tensors.count` and repeated architectures over the set.

    Raises FileError naming the file, the expected and the found value.
    """
    if len(files) == 1:
        return
    first = files[0][1].metadata
    for index, (name, header) in enumerate(files):
        meta = header.metadata
        for key, wanted in (("split.count", len(files)), ("split.no", index)):
            found = meta.integer(key)
            if found != wanted:
                raise FileError(f"{name}: {key} is {found}, expected {wanted}")
        arch = meta.string("general.architecture", "")
        if arch and arch != first.string("general.architecture"):
            raise FileError(
                f"{name}: general.architecture is {arch}, the first split says {first.string('general.architecture')}"
            )
    total = sum(len(header.tensors) for _, header in files)
    for name, header in files:
        declared = header.metadata.integer("split.tensors.count", total)
        if declared != total:
            raise FileError(f"{name}: split.tensors.count is {declared}, the splits hold {total} tensors")


def _member(path: Place, match: re.Match[str], no: int) -> Place:
    """File `no` of the set: numbered with the width of `path`'s own number, or without padding."""

    def named(number: str) -> Place:
        return path.with_name(f"{match['stem']}-{number}-of-{match['count']}{path.suffix}")

    padded, plain = named(f"{no:0{len(match['no'])}d}"), named(str(no))
    return plain if plain.is_file() and not padded.is_file() else padded


def _only_model(folder: Path) -> Path:
    found = models(folder)
    if not found:
        raise UsageError(f"{folder}: holds no model (*.gguf, projector and draft files aside)", hint=_instead(folder))
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise UsageError(f"{folder}: holds {len(found)} models: {names}", hint="Name one of these files.")
    return found[0]


def _instead(folder: Path) -> str:
    if next(folder.glob("*.safetensors"), None) is not None:
        return f"It holds safetensors, which vLLM loads by itself: vllm serve {folder}"
    return "Name the .gguf file, or the folder that it is in."
