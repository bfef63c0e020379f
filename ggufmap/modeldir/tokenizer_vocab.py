"""The token list of a GGUF header: texts, types and named tokens, checked before anything is built from them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import MetadataError
from ggufmap.modeldir.stop_tokens import MODEL, TOKEN_TYPES, TOKENS, declared_ids, read_marks

_SCORES = "tokenizer.ggml.scores"


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type` (llama.cpp's `llama_token_type`)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)
"""Types that decoding leaves out."""

CUT_TYPES = (*SPECIAL_TYPES, TokenType.USER_DEFINED)
"""Types whose text is cut out of the input before anything else happens to it."""

_NAMED_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
}
# llama.cpp assumes these when the file is silent (for gpt2: 11 as BOS and EOS, Falcon's).
_DEFAULTS = {"llama": {"bos": 1, "eos": 2, "unk": 0}, "gpt2": {"bos": 11, "eos": 11}}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Texts by id (unique), their ids, types as llama.cpp sees them, and the ids of the named tokens."""

    texts: list[str]
    ids: Mapping[str, int]
    types: npt.NDArray[np.int64]
    named: Mapping[str, int]
    warnings: tuple[str, ...]

    def is_cut(self, token: int) -> bool:
        """Whether the token's text is cut out of the input as a whole."""
        return int(self.types[token]) in CUT_TYPES

    def cut_mask(self) -> npt.NDArray[np.bool_]:
        """`is_cut` of every token."""
        return np.isin(self.types, CUT_TYPES)


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Read and check the token list.

    Raises MetadataError for a missing or empty list, lists of different length, wrong element types, or a BOS or EOS
    id outside the list.
    """
    warnings: list[str] = []
    texts = _distinct(_texts(metadata, warnings), warnings)
    ids = dict(zip(texts, range(len(texts)), strict=True))
    types = _types(metadata, len(texts), warnings)
    marks = read_marks(metadata, ids, len(texts))
    for marked, kind in (
        (marks.control, TokenType.CONTROL),
        (marks.user_defined, TokenType.USER_DEFINED),
        (marks.normal, TokenType.NORMAL),
    ):
        types[list(marked)] = kind
    named = _named(metadata, types, warnings)
    return Vocabulary(texts, ids, types, named, tuple(warnings))


def read_scores(metadata: Metadata, size: int) -> npt.NDArray[np.float32] | None:
    """The score of each token as float32, or None when the file has none.

    Raises MetadataError for fewer scores than tokens, a wrong element type, or a score that is not a number.
    """
    if _SCORES not in metadata:
        return None
    scores = _numbers(metadata, _SCORES, size, "fiu", []).astype(np.float32)
    if np.isnan(scores).any():
        bad = int(np.isnan(scores).argmax())
        raise MetadataError(f"{metadata.file}: {_SCORES}[{bad}] is not a number")
    return scores


def _texts(metadata: Metadata, warnings: list[str]) -> list[str]:
    raw = metadata.raw_strings(TOKENS)
    if not raw:
        raise MetadataError(f"{metadata.file}: {TOKENS} is empty")
    try:
        texts = [token.decode() for token in raw]
    except UnicodeDecodeError:
        texts = [token.decode(errors="replace") for token in raw]
        broken = [i for i, text in enumerate(texts) if text.encode() != raw[i]]
        for i in broken:
            texts[i] = f"[INVALID_{i}]"
        warnings.append(
            f"{TOKENS}: {len(broken)} tokens are not valid UTF-8, the first is {broken[0]} "
            f"({raw[broken[0]][:16].hex(' ')}); no text can produce them"
        )
    if "" in texts:
        warnings.append(f"{TOKENS}: {texts.count('')} tokens have no text")
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
    return texts


def _distinct(texts: list[str], warnings: list[str]) -> list[str]:
    """`texts` with a text of its own for each id: the first token of several with one text keeps it."""
    if len(set(texts)) == len(texts):
        return texts
    known, seen, again = set(texts), set[str](), []
    for i, text in enumerate(texts):
        if text in seen:
            again.append(f"[{i}] is {text[:64]!r}")
            text = f"[DUPLICATE_{i}]"
            while text in known:  # a file may have that text, too
                text += "_"
            known.add(text)
            texts[i] = text
        seen.add(text)
    warnings.append(
        f"{TOKENS}: {len(again)} tokens have the text of an earlier one (the first: {again[0]}); no text can produce "
        "them, and llama.cpp refuses the file"
    )
    return texts


def _types(metadata: Metadata, size: int, warnings: list[str]) -> npt.NDArray[np.int64]:
    if TOKEN_TYPES not in metadata:
        warnings.append(f"{TOKEN_TYPES} is missing: every token counts as normal text")
        return np.full(size, TokenType.NORMAL, dtype=np.int64)
    types = _numbers(metadata, TOKEN_TYPES, size, "iu", warnings).astype(np.int64)
    unknown = (types < min(TokenType)) | (types > max(TokenType))
    if unknown.any():
        i = int(unknown.argmax())
        warnings.append(
            f"{TOKEN_TYPES}: {int(unknown.sum())} tokens have a type beyond {min(TokenType):d} to {max(TokenType):d} "
            f"([{i}] is {types[i]}); they count as undefined, as in llama.cpp"
        )
        types[unknown] = TokenType.UNDEFINED
    return types


def _numbers(metadata: Metadata, key: str, size: int, kinds: str, warnings: list[str]) -> npt.NDArray[np.generic]:
    values = metadata.numbers(key)
    if values.dtype.kind not in kinds:
        raise MetadataError(f"{metadata.file}: {key} should hold numbers, found {metadata[key].type_name}")
    if len(values) < size:
        raise MetadataError(f"{metadata.file}: {key} has {len(values)} entries, but {TOKENS} has {size}")
    if len(values) > size:
        warnings.append(f"{key} has {len(values)} entries, but {TOKENS} has {size}; the rest is ignored")
    return values[:size]


def _named(metadata: Metadata, types: npt.NDArray[np.int64], warnings: list[str]) -> dict[str, int]:
    size = len(types)
    named = {}
    for name, key in _NAMED_KEYS.items():
        try:
            found = declared_ids(metadata, key, size)
        except MetadataError as e:
            if name in ("bos", "eos"):
                raise
            # llama.cpp goes on without it, and files with a padding id one too high are common.
            warnings.append(f"{e.message}; ignored")
            continue
        default = _DEFAULTS.get(metadata.string(MODEL), {}).get(name, size)
        if found:
            named[name] = found[0]
        elif key not in metadata and default < size and int(types[default]) in SPECIAL_TYPES:
            named[name] = default
    return named
