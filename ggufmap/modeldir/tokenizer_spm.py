"""SentencePiece vocabularies (`tokenizer.ggml.model` llama): scores become BPE merges of the same effect.

llama.cpp joins the two neighbours whose joined text is the token with the highest score, the leftmost on a
tie (0c1e57098, `llm_tokenizer_spm_session`). `tokenizers` joins the pair that comes first in its list. So the
list holds every way to cut a token into two, tokens by falling score.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import MetadataError, UnsupportedError
from ggufmap.modeldir.tokenizer_vocab import TokenType, Vocabulary, read_scores

SPACE = "▁"
"""U+2581, what a space becomes."""

_MAX_TOKEN = 1024
"""Characters of a token. Cutting costs the square of it; the longest in use are runs of a few hundred spaces."""

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_BYTE_TEXTS = frozenset(_BYTES)

Merge = tuple[str, str]


def spm_model(metadata: Metadata, vocabulary: Vocabulary, warnings: list[str]) -> dict[str, object]:
    """The `model` part of tokenizer.json.

    Raises MetadataError for unusable scores or an overlong token, UnsupportedError when scores do not order
    the tokens: llama.cpp then goes by position, which no list of merges can express.
    """
    texts = vocabulary.texts
    scores = read_scores(metadata, len(texts))
    if scores is None:
        raise _unordered(metadata, "tokenizer.ggml.scores is missing")
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if int(lengths.max()) > _MAX_TOKEN:
        longest = int(lengths.argmax())
        raise MetadataError(
            f"{metadata.file}: tokenizer.ggml.tokens[{longest}] has {lengths[longest]} characters; "
            f"a SentencePiece token may have {_MAX_TOKEN} here"
        )
    _check_byte_tokens(vocabulary, warnings)
    # On a tie the longer token first: a run of blanks grows from its left end, as in llama.cpp.
    order = np.lexsort((-lengths, -scores.astype(np.float64)))
    parts = _parts(vocabulary)
    merges, made = _merges([texts[i] for i in order.tolist()], parts)
    # Tokens that are cut out of the input beforehand meet nobody.
    made_ids = order[made][~vocabulary.cut_mask()[order[made]]]
    _check_ties(metadata, [texts[i] for i in made_ids.tolist()], scores[made_ids], warnings)
    _check_characters(vocabulary, parts, warnings)
    missing = [byte for byte in _BYTES if byte not in vocabulary.ids]
    if missing:
        warnings.append(
            f"the vocabulary has no byte token for {len(missing)} bytes ({missing[0]}): text that needs one becomes "
            "the unknown token, where llama.cpp fails"
        )
    unknown = vocabulary.named.get("unk")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if unknown is None else texts[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def _check_byte_tokens(vocabulary: Vocabulary, warnings: list[str]) -> None:
    marked = [vocabulary.texts[i] for i in np.flatnonzero(vocabulary.types == TokenType.BYTE).tolist()]
    odd = [text for text in marked if text not in _BYTE_TEXTS]
    if odd:
        warnings.append(f"{len(odd)} tokens of type byte do not spell one (<0x00> to <0xFF>): {odd[0][:64]!r}")


def _parts(vocabulary: Vocabulary) -> set[str]:
    """Texts that can be a part or a result of a merge: spaces are escaped first, bytes come only at the end."""
    parts = set(vocabulary.texts)
    byte_tokens = np.flatnonzero(vocabulary.types == TokenType.BYTE).tolist()
    parts.difference_update(vocabulary.texts[i] for i in byte_tokens)
    return {text for text in parts if " " not in text} if any(" " in text for text in parts) else parts


def _merges(ordered: list[str], parts: set[str]) -> tuple[list[Merge], list[int]]:
    """The merges of all tokens in the order given, and the positions of the tokens that have any."""
    merges: list[Merge] = []
    made: list[int] = []
    for position, text in enumerate(ordered):
        before = len(merges)
        for cut in range(len(text) - 1, 0, -1):
            if (right := text[cut:]) in parts and (left := text[:cut]) in parts:
                merges.append((left, right))
        if len(merges) > before:
            made.append(position)
    return merges, made


def _check_ties(metadata: Metadata, made: list[str], scores: npt.NDArray[np.float32], warnings: list[str]) -> None:
    """Tokens of one score are merged by position, which ranks cannot say. `made` and `scores` fall by score."""
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) + 1
    starts = np.append(0, ends[:-1])
    several = ends - starts > 1
    groups = [made[i:j] for i, j in zip(starts[several].tolist(), ends[several].tolist(), strict=True)]
    # Runs of one character do no harm: see the order of tokens above.
    unclear = [text for group in groups if len(set("".join(group))) > 1 for text in group]
    if 2 * len(unclear) > len(made):
        raise _unordered(metadata, f"{len(unclear)} of {len(made)} tokens share their score with another")
    if unclear:
        warnings.append(
            f"tokenizer.ggml.scores: {len(unclear)} tokens share their score with another ({unclear[0]!r}); llama.cpp "
            "then goes by position, so ids can differ where they meet"
        )


def _check_characters(vocabulary: Vocabulary, parts: set[str], warnings: list[str]) -> None:
    """llama.cpp can build a token from a character that is none itself; a list of merges cannot."""
    alone = set("".join(parts)) - parts
    if not alone:
        return
    lost = [text for text in parts if not alone.isdisjoint(text) and _needs(text, alone, parts)]
    lost = sorted(text for text in lost if not vocabulary.is_cut(vocabulary.ids[text]))
    if lost:
        warnings.append(
            f"{len(lost)} tokens contain a character that is no token itself ({lost[0]!r}): they are never produced "
            "here, llama.cpp can produce them"
        )


def _needs(text: str, alone: set[str], parts: set[str]) -> bool:
    """Whether two neighbours can make `text`, one of them a character of `alone`."""
    cuts = ((text[:cut], text[cut:]) for cut in range(1, len(text)))
    return any(
        (left in alone and (right in parts or right in alone)) or (right in alone and left in parts)
        for left, right in cuts
    )


def _unordered(metadata: Metadata, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{metadata.file}: {why}, so the token list alone does not say how text is cut",
        hint="Pass a Hugging Face tokenizer with --tokenizer DIR.",
    )
