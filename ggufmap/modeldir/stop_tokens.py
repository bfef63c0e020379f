"""Which token ids end a generation: the union of all that the file says, each with its source.

The texts and the two exceptions are llama.cpp's (0c1e57098, `src/llama-vocab.cpp`, `special_eog_ids`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import MetadataError

TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
MODEL = "tokenizer.ggml.model"
CONTROL_TYPE = 3

_EOS = "tokenizer.ggml.eos_token_id"
_DECLARED = (_EOS, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_DEFAULT_EOS = {"llama": 2, "gpt2": 11}
"""What llama.cpp assumes when the file names no EOS token."""

END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
"""Token texts that end a turn or the text, whatever the file declares."""


@dataclass(frozen=True, slots=True)
class _Infill:
    keys: tuple[str, ...]
    texts: tuple[str, ...]
    ends: bool = False


_INFILL = (
    _Infill(
        ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
        (
            *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
            *("<|code_prefix|>", "<|prefix|>"),
        ),
    ),
    _Infill(
        ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
        (
            *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
            *("<|code_suffix|>", "<|suffix|>"),
        ),
    ),
    _Infill(
        ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
        (
            *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
            *("<|code_middle|>", "<|middle|>"),
        ),
    ),
    _Infill(
        ("tokenizer.ggml.fim_pad_token_id",),
        ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
        ends=True,
    ),
    _Infill(
        ("tokenizer.ggml.fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
        ends=True,
    ),
    _Infill(("tokenizer.ggml.fim_sep_token_id",), ("<|file_sep|>",), ends=True),
)

_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True, slots=True)
class StopToken:
    """A token id that ends a generation, and the metadata key or the token text that says so."""

    id: int
    source: str


@dataclass(frozen=True, slots=True)
class Marks:
    """What llama.cpp concludes about tokens from ids and texts: stop tokens, and types that it overrides."""

    stops: tuple[StopToken, ...]
    control: frozenset[int]
    user_defined: frozenset[int]
    normal: frozenset[int]


def stop_token_ids(metadata: Metadata) -> tuple[StopToken, ...]:
    """All stop tokens of the file: declared ones first, then those known by their text, by id.

    Raises MetadataError when there is no token list, a key has the wrong type or a declared id is not below
    the vocabulary size.
    """
    tokens = metadata.raw_strings(TOKENS)
    known = {text.encode(): text for text in _known_texts()}
    ids = {known[raw]: i for i, raw in enumerate(tokens) if raw in known}
    return read_marks(metadata, ids, len(tokens)).stops


def declared_ids(metadata: Metadata, key: str, size: int) -> list[int]:
    """The ids under `key` (none, one, or an array). Raises MetadataError for one outside a vocabulary of `size`."""
    if key not in metadata:
        return []
    ids = metadata.integer_list(key)
    for token in ids:
        if not 0 <= token < size:
            raise MetadataError(f"{metadata.file}: {key} is {token}, but the vocabulary has {size} tokens")
    return ids


def read_marks(metadata: Metadata, ids: Mapping[str, int], size: int) -> Marks:
    """Stop tokens and type overrides, given the ids of (at least) the known texts. Raises as `stop_token_ids`."""
    sources = {token: key for key in _DECLARED for token in declared_ids(metadata, key, size)}
    if _EOS not in metadata:
        sources |= _default_eos(metadata, size)
    control: set[int] = set()
    texts: dict[int, str] = {}
    for infill in _INFILL:
        declared = {token: key for key in infill.keys for token in declared_ids(metadata, key, size)}
        found = {} if declared else _by_text(infill.texts, ids)
        control |= found.keys()
        if infill.ends:
            texts |= declared | found
    ends = _by_text(END_TEXTS, ids)
    control |= ends.keys()
    sources = dict(sorted((texts | ends).items())) | sources
    shown = {ids[text] for text in _ALWAYS_SHOWN if text in ids}
    kept, normal = _exceptions({text for text in END_TEXTS if ids.get(text) in sources}, ids)
    first = [token for key in _DECLARED for token in declared_ids(metadata, key, size)]
    order = [*dict.fromkeys(first), *sorted(sources.keys() - set(first))]
    stops = tuple(StopToken(token, sources[token]) for token in order if token not in kept | normal)
    user_defined = frozenset(shown | kept)
    return Marks(stops, frozenset(control) - user_defined - normal, user_defined, frozenset(normal))


def _known_texts() -> set[str]:
    infill = {text for group in _INFILL for text in group.texts}
    return infill | set(END_TEXTS) | set(_ALWAYS_SHOWN)


def _by_text(texts: tuple[str, ...], ids: Mapping[str, int]) -> dict[int, str]:
    return {ids[text]: f"token text {text}" for text in texts if text in ids}


def _exceptions(ends: set[str], ids: Mapping[str, int]) -> tuple[set[int], set[int]]:
    """Ids that end no turn although their text is listed: to be kept visible, and plain text."""
    called = "<|call|>" in ends or "<|calls|>" in ends
    kept = set()
    if "<|end|>" in ends and called and ends & {"<|return|>", "<|flush|>"}:
        kept = {ids["<|end|>"]}  # gpt-oss, solar-open: it closes one message of several
    plain = {ids["</s>"]} if "</s>" in ends and "<|tool_response>" in ends else set()  # gemma 4
    return kept, plain


def _default_eos(metadata: Metadata, size: int) -> dict[int, str]:
    model = metadata.string(MODEL, "?")
    token = _DEFAULT_EOS.get(model, size)
    if token >= size or TOKEN_TYPES not in metadata:
        return {}
    types = metadata.numbers(TOKEN_TYPES)
    # Only a control token: llama.cpp would stop at whatever token 11 is, a comma in many vocabularies.
    if token >= len(types) or int(types[token]) != CONTROL_TYPE:
        return {}
    return {token: f"llama.cpp's default for tokenizer.ggml.model {model}"}
