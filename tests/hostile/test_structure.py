"""Sound files with absurd token lists: our errors, or a tokenizer.json that the tokenizers library takes."""

from __future__ import annotations

import struct
from typing import Any

from hostile.models import spm, vocabulary
from hostile.targets import NAME, Memory
from hypothesis import given, settings
from hypothesis import strategies as st
from support import gguf_bytes as gb
from support import small_models as small
from tokenizers import Tokenizer

from ggufmap.checkpoint.header import parse_header
from ggufmap.errors import GgufmapError
from ggufmap.modeldir.tokenizer import build_tokenizer

SPECIAL = ["<s>", "</s>", "<unk>", "<|im_end|>", "<|end|>", "<|call|>", "<0x0A>", "<0xZZ>", "▁", " ", "", "[EMPTY_0]"]
token = st.one_of(st.sampled_from(SPECIAL), st.text(max_size=4), st.binary(max_size=4), st.just("ab"))
tokens = st.lists(token, max_size=12)
numbers = st.lists(st.integers(-3, 9), max_size=14)
ids = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))
merges = st.lists(
    st.one_of(st.sampled_from(["a b", "ab c", "▁ a", " ", "a", "a b c"]), st.text(max_size=5)), max_size=6
)
scores = st.lists(st.one_of(st.integers(-5, 0).map(float), st.floats(width=32)), max_size=14)


def texts(items: list[Any]) -> tuple[int, Any]:
    return gb.ARRAY, gb.Array(gb.STRING, items)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    words=tokens,
    exact=st.booleans(),
    types=numbers,
    merges=merges,
    scores=scores,
    bos=ids,
    eos=ids,
    sentencepiece=st.booleans(),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    pre=st.sampled_from(["gpt-2", "llama-bpe", "qwen2", "default", "", "nonsense"]),
)
def test_token_lists(
    words: list[Any],
    exact: bool,
    types: list[int],
    merges: list[str],
    scores: list[float],
    bos: int,
    eos: int,
    sentencepiece: bool,
    flags: tuple[bool, bool, bool],
    pre: str,
) -> None:
    if exact and words:  # lists of one length get further
        types = (types * len(words) or [1] * len(words))[: len(words)]
        scores = (scores * len(words) or [0.0] * len(words))[: len(words)]
        bos, eos = bos % len(words), eos % len(words)
    change = {
        "tokens": texts(words),
        "token_type": (gb.ARRAY, gb.Array(gb.INT32, types)),
        "merges": texts(merges),
        "scores": (gb.ARRAY, gb.Array(gb.FLOAT32, [_single(x) for x in scores])),
        "bos_token_id": (gb.UINT32, bos),
        "eos_token_id": (gb.UINT32, eos),
        "pre": (gb.STRING, pre),
        "add_bos_token": (gb.BOOL, flags[0]),
        "add_eos_token": (gb.BOOL, flags[1]),
        "add_space_prefix": (gb.BOOL, flags[2]),
    }
    meta = spm(**change) if sentencepiece else vocabulary(**change)
    header = parse_header(Memory(small.encode(small.llama_metadata() | meta, [])))
    assert header.metadata.file == NAME
    try:
        files = build_tokenizer(header.metadata)
    except GgufmapError:
        return
    made = Tokenizer.from_str(files.tokenizer_json)
    assert made.get_vocab_size(with_added_tokens=True) == len(words)
    made.decode(made.encode("a b ▁ab\n<s>").ids)


def _single(value: float) -> float:
    """As F32 can hold it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
