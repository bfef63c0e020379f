"""Byte-level BPE vocabularies (`tokenizer.ggml.model` gpt2) and raw UTF-8 ones (gemma4): merges as in the file."""

from __future__ import annotations

import numpy as np

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import MetadataError
from ggufmap.modeldir.pretokenizers import PreTokenizer, exact_pattern, find_pre_tokenizer
from ggufmap.modeldir.tokenizer_vocab import Vocabulary

_PRE = "tokenizer.ggml.pre"
_MERGES = "tokenizer.ggml.merges"


def choose_pre_tokenizer(metadata: Metadata, model: str, warnings: list[str]) -> PreTokenizer:
    """The pre-tokenizer of the file. Raises UnsupportedError when it is not known."""
    if model == "gemma4":
        return find_pre_tokenizer("gemma4", metadata.file)
    name = metadata.string(_PRE, "")
    if not name:
        warnings.append(f"{_PRE} is missing: 'default' is used as in llama.cpp, ids can differ from the original's")
        name = "default"
    return find_pre_tokenizer(name, metadata.file)


def bpe_model(metadata: Metadata, vocabulary: Vocabulary, pre: PreTokenizer, warnings: list[str]) -> dict[str, object]:
    """The `model` part of tokenizer.json. Raises MetadataError when the file has no list of merges."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": not pre.byte_level,
        "ignore_merges": pre.ignore_merges,
        "vocab": vocabulary.ids,
        "merges": _merges(metadata, vocabulary, warnings),
    }


def pre_tokenizer_spec(pre: PreTokenizer) -> dict[str, object]:
    """The `pre_tokenizer` part of tokenizer.json."""
    steps: list[dict[str, object]] = [
        {
            "type": "Split",
            "pattern": {"Regex": exact_pattern(pattern)},
            "behavior": "Isolated",
            "invert": False,
        }
        for pattern in pre.patterns
    ]
    if pre.byte_level:
        steps.append(byte_level())
    return {"type": "Sequence", "pretokenizers": steps}


def byte_level() -> dict[str, object]:
    """GPT-2's bytes as printable characters; the same words serve as pre-tokenizer and as decoder."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def byte_level_decoder(vocabulary: Vocabulary) -> dict[str, object]:
    """The `decoder` part of tokenizer.json.

    DeepSeek's vocabularies have letters such as ü as tokens of their own, cut out of the text. A byte-level decoder
    takes them for the byte that this letter stands for elsewhere, so they are spelt as bytes first.
    """
    mask = vocabulary.cut_mask()
    letters = {vocabulary.texts[i] for i in np.flatnonzero(mask).tolist()} & _LETTERS.keys()
    if letters:
        letters -= set("".join(vocabulary.texts[i] for i in np.flatnonzero(~mask).tolist()))
    spelt = [
        {"type": "Replace", "pattern": {"String": letter}, "content": _LETTERS[letter]} for letter in sorted(letters)
    ]
    return {"type": "Sequence", "decoders": [*spelt, byte_level()]} if spelt else byte_level()


def _byte_letters() -> dict[str, str]:
    """Characters beyond ASCII that stand for a byte, and how their own UTF-8 bytes are written with such characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {
        letter: "".join(alphabet[byte] for byte in letter.encode())
        for letter in alphabet.values()
        if ord(letter) > 0x7F
    }


_LETTERS = _byte_letters()


def _merges(metadata: Metadata, vocabulary: Vocabulary, warnings: list[str]) -> list[tuple[str, str]]:
    if _MERGES not in metadata:
        if metadata.string(_PRE, "") == "kimi-k2":  # llama.cpp's own exception
            warnings.append(f"{_MERGES} is missing: every byte becomes a token, as in llama.cpp")
            return []
        raise MetadataError(f"{metadata.file}: metadata key {_MERGES} is missing")
    ids = vocabulary.ids
    merges: dict[tuple[str, str], None] = {}
    unusable: list[str] = []
    for raw in metadata.raw_strings(_MERGES):
        line = raw.decode(errors="replace")
        cut = line.find(" ", 1)
        left, right = line[: max(cut, 0)], line[cut + 1 :]
        if left in ids and right in ids and left + right in ids:
            merges[left, right] = None  # the first of two equal ones counts
        else:
            unusable.append(line)
    if unusable:
        warnings.append(
            f"{_MERGES}: {len(unusable)} entries do not join two tokens into a third ({unusable[0][:64]!r}); ignored"
        )
    return list(merges)
