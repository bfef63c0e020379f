"""Which file of a repository a quantisation tag means. Pure functions over file names.

A tag is compared by whole words, whatever the case and the separators: `q4-k-m` is `Q4_K_M`, `f16` is not part of
`bf16`, and `Q4_K` is not `Q4_K_M`. What a name says itself counts before what its folder says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from ggufmap.checkpoint.splits import DRAFT_PREFIX, SPLIT

_WORDS = re.compile(r"[a-z0-9]+")
_TYPE = re.compile(r"i?q\d+|tq\d|mxfp\d+|nvfp\d+|bf16|fp?16|fp?32|fp?64|fp8")
"""The first word of a quantisation: Q4, IQ3, TQ1, MXFP4, BF16."""
_DETAIL = re.compile(r"\d{1,2}|k|p|nl|moe|x{0,3}[sml]")
"""The words that may follow it: Q4_K_M, Q4_0_4_8, IQ3_XXS, IQ4_NL, MXFP4_MOE."""
_MAKERS = ("ud", "i1")
"""What makers write before it, as part of it."""

Words = tuple[str, ...]


def models(files: Iterable[str]) -> list[str]:
    """The first file of each model among `files`, sorted: split sets count once; projectors, drafts and importance
    matrices not at all.
    """
    found: dict[str, str] = {}
    for file in sorted(files):
        name = PurePosixPath(file).name
        lower = name.lower()
        if not lower.endswith(".gguf") or is_projector(file) or lower.startswith(DRAFT_PREFIX) or "imatrix" in lower:
            continue
        match = SPLIT.fullmatch(file)
        found.setdefault(f"{match['stem']} of {int(match['count'])}" if match else file, file)
    return list(found.values())


def is_projector(file: str) -> bool:
    """Whether `file` is named as multimodal projectors are."""
    name = PurePosixPath(file).name.lower()
    return name.endswith(".gguf") and "mmproj" in name


def set_of(file: str, files: Iterable[str]) -> list[str]:
    """The files of the split set that `file` belongs to, sorted: itself alone where it is none."""
    match = SPLIT.fullmatch(file)
    if match is None:
        return [file]
    mine = match["stem"], int(match["count"])
    others = ((other, SPLIT.fullmatch(other)) for other in files)
    return sorted(other for other, at in others if at is not None and (at["stem"], int(at["count"])) == mine)


def projectors_of(file: str, files: Iterable[str]) -> list[str]:
    """The projectors in the folder of `file`; where there is none, those at the top of the repository."""
    every = sorted(filter(is_projector, files))
    near = [other for other in every if PurePosixPath(other).parent == PurePosixPath(file).parent]
    return near or [other for other in every if "/" not in other]


def matching(candidates: Sequence[str], tag: str) -> list[str]:
    """The files among `candidates` (see `models`) that `tag` means; several when it is ambiguous."""
    wanted = _words(tag)
    exact = [file for file in candidates if _label(file) == wanted]
    return exact or [file for file in candidates if _means(file, wanted)]


def label(file: str) -> str:
    """How messages call the quantisation of `file`: `UD-Q4_K_XL`, or its path when the name says none."""
    for text in _names(file):
        words = list(_WORDS.finditer(text.lower()))
        found = _span([word[0] for word in words])
        if found is not None:
            return text[words[found[0]].start() : words[found[2] - 1].end()]
    return file


def _means(file: str, wanted: Words) -> bool:
    """Whether `wanted` is the whole quantisation in the file's name, with or without words before and after it."""
    for text in _names(file):
        words = _words(text)
        found = _span(words)
        if found is None:
            continue
        _, start, end = found
        return any(words[first:last] == wanted for first in range(start + 1) for last in (end, len(words)))
    return _words(_names(file)[0]) == wanted


def _label(file: str) -> Words | None:
    """The quantisation that the file's name, or else a folder's, says."""
    for text in _names(file):
        words = _words(text)
        found = _span(words)
        if found is not None:
            return words[found[0] : found[2]]
    return None


def _names(file: str) -> list[str]:
    """What may say the quantisation: the name without its split number and suffix, then the folders, nearest first."""
    match = SPLIT.fullmatch(file)
    path = PurePosixPath(match["stem"] if match else file.rpartition(".")[0])
    return [path.name, *path.parts[-2::-1]]


def _span(words: Sequence[str]) -> tuple[int, int, int] | None:
    """Where the last quantisation in `words` begins with its maker's word, begins, and ends."""
    start = next((i for i in reversed(range(len(words))) if _TYPE.fullmatch(words[i])), None)
    if start is None:
        return None
    end = start + 1
    while end < len(words) and _DETAIL.fullmatch(words[end]):
        end += 1
    return start - (start > 0 and words[start - 1] in _MAKERS), start, end


def _words(text: str) -> Words:
    return tuple(_WORDS.findall(text.lower()))
