"""Sound headers with a bad meaning: split sets, keys of the wrong type, token lists."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hostile.case import Table
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import ARRAY, INT32, STRING, UINT8, UINT32, UINT64, Array, Raw

CASES = Table()
_add = CASES.put

NO_TOKENIZER: small.Metadata = {
    "tokenizer.ggml.model": (STRING, "none"),
    "llama.vocab_size": (UINT32, small.VOCAB),
}
"""llama.cpp asks for a tokenizer, or for these."""


_WHY = {
    "split.count differs": "llama.cpp asks only the first file; a file that says otherwise is of another set",
    "another architecture": "llama.cpp asks only the first file; a file that says otherwise is of another model",
    "epsilon is NaN": "every value that is normalised with it becomes NaN",
    "name is no UTF-8": "names are text by the specification, and are shown",
}


def split_set(*changes: tuple[int, str, tuple[int, Any] | None], count: int = 3, prefix: str = "s") -> dict[str, bytes]:
    """A small Llama in `count` files; each change sets (or removes) a key of one of them."""
    everything = small.llama_tensors()
    parts = [everything[i::count] for i in range(count)]
    found = {}
    for index, part in enumerate(parts):
        meta: small.Metadata = small.llama_metadata() | NO_TOKENIZER if index == 0 else {}
        meta |= {
            "split.no": (gb.UINT16, index),
            "split.count": (gb.UINT16, count),
            "split.tensors.count": (INT32, len(everything)),
        }
        for where, key, value in changes:
            if where == index:
                meta.pop(key, None)
                meta |= {} if value is None else {key: value}
        found[f"{prefix}-{index + 1:05d}-of-{count:05d}.gguf"] = small.encode(meta, part)
    return found


def _splits() -> None:
    kind = "splits"
    _add(kind, "a whole set", split_set, None, stage="set")
    second = "s-00002-of-00003.gguf"
    _add(
        kind,
        "a split is missing",
        lambda: {k: v for k, v in split_set().items() if k != second},
        rf"1 of 3 splits are missing: {second}",
        stage="set",
    )
    for name, change, message in (
        ("split.no twice", (2, "split.no", (gb.UINT16, 1)), "split.no is 1, expected 2"),
        ("split.no missing", (1, "split.no", None), "split.no is missing"),
        ("split.no is text", (1, "split.no", (STRING, "1")), "split.no should be an integer, found string"),
        ("split.count differs", (1, "split.count", (gb.UINT16, 2)), "split.count is 2, expected 3"),
        ("split.count is not the name's", (0, "split.count", (gb.UINT16, 4)), "split.count is 4, the file name says 3"),
        ("split.count -1", (0, "split.count", (INT32, -1)), "split.count is -1, allowed are 1 to 65535"),
        ("split.count 2^64-1", (0, "split.count", (UINT64, (1 << 64) - 1)), r"split.count is \d{20}, allowed"),
        ("split.tensors.count", (0, "split.tensors.count", (INT32, 7)), "split.tensors.count is 7, the splits hold 21"),
        (
            "another architecture",
            (1, "general.architecture", (STRING, "gpt2")),
            "general.architecture is gpt2, the fir",
        ),
    ):
        _add(kind, name, lambda change=change: split_set(change), message, stage="set", why=_WHY.get(name, ""))

    def duplicate() -> dict[str, bytes]:
        files = split_set((0, "split.tensors.count", None), (1, "split.tensors.count", None), count=2)
        last = list(files)[1]
        meta: small.Metadata = {"split.no": (gb.UINT16, 1), "split.count": (gb.UINT16, 2)}
        return files | {last: small.encode(meta, [small.tensor("token_embd.weight", small.VOCAB, small.HIDDEN)])}

    _add(
        kind,
        "a tensor in two splits",
        duplicate,
        "tensor token_embd.weight is also in .*s-00001-of-00002.gguf",
        stage="set",
    )


def model(change: small.Metadata, drop: tuple[str, ...] = ()) -> bytes:
    """A small Llama with these keys instead of its own."""
    meta = {k: v for k, v in small.llama_metadata().items() if k not in drop}
    return small.encode(meta | NO_TOKENIZER | change, small.llama_tensors())


def _configs() -> None:
    kind = "types of keys"
    for name, change, message in (
        (
            "block count is text",
            {"llama.block_count": (STRING, "2")},
            "llama.block_count should be an integer, found s",
        ),
        ("block count 2^32-1", {"llama.block_count": (UINT32, (1 << 32) - 1)}, "block_count"),
        ("block count -1", {"llama.block_count": (INT32, -1)}, "block_count"),
        ("heads 0", {"llama.attention.head_count": (UINT32, 0)}, "head_count"),
        (
            "three million heads",
            {"llama.attention.head_count": (ARRAY, Raw(struct.pack("<IQ", UINT8, 3_000_000) + bytes(3_000_000)))},
            "llama.attention.head_count has 3000000 entries, allowed are 2097152",
        ),
        ("epsilon is NaN", {"llama.attention.layer_norm_rms_epsilon": (gb.FLOAT32, float("nan"))}, "finite number"),
        ("architecture is a number", {"general.architecture": (UINT32, 1)}, "general.architecture should be a string"),
        ("architecture is empty", {"general.architecture": (STRING, "")}, "architecture"),
        ("architecture is a path", {"general.architecture": (STRING, "../llama")}, "architecture"),
        ("name is no UTF-8", {"general.name": (STRING, b"\xff\xfe")}, "general.name is not valid UTF-8"),
        ("name is a number", {"general.name": (UINT32, 1)}, "general.name should be a string, found u32"),
    ):
        _add(kind, name, lambda change=change: model(change), message, stage="config", why=_WHY.get(name, ""))
    _add(
        kind,
        "file type is text",
        lambda: model({"general.file_type": (STRING, "Q4")}),
        None,
        stage="config",
    )
    _add(
        kind,
        "no architecture",
        lambda: model({}, drop=("general.architecture",)),
        "architecture is missing",
        stage="config",
    )


def vocabulary(**changes: tuple[int, Any] | None) -> small.Metadata:
    """A byte-level BPE vocabulary of the 256 bytes; `changes` name keys below tokenizer.ggml, None removes one."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    words = [*letters, "<s>", "</s>"]
    meta: small.Metadata = {
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "gpt-2"),
        "tokenizer.ggml.tokens": (ARRAY, Array(STRING, words)),
        "tokenizer.ggml.token_type": (ARRAY, Array(INT32, [1] * len(letters) + [3, 3])),
        "tokenizer.ggml.merges": (ARRAY, Array(STRING, [])),
        "tokenizer.ggml.bos_token_id": (UINT32, 256),
        "tokenizer.ggml.eos_token_id": (UINT32, 257),
    }
    for key, value in changes.items():
        full = f"tokenizer.{'' if key.startswith('chat') else 'ggml.'}{key}"
        meta.pop(full, None)
        meta |= {} if value is None else {full: value}
    return meta


def spm(**changes: tuple[int, Any] | None) -> small.Metadata:
    """A SentencePiece vocabulary of the 256 byte tokens and three letters."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    meta: small.Metadata = {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, Array(STRING, words)),
        "tokenizer.ggml.token_type": (ARRAY, Array(INT32, [2, 3, 3] + [6] * 256 + [1, 1, 1])),
        "tokenizer.ggml.scores": (ARRAY, Array(gb.FLOAT32, [0.0] * 259 + [-1.0, -2.0, -3.0])),
        "tokenizer.ggml.bos_token_id": (UINT32, 1),
        "tokenizer.ggml.eos_token_id": (UINT32, 2),
    }
    for key, value in changes.items():
        meta.pop(f"tokenizer.ggml.{key}", None)
        meta |= {} if value is None else {f"tokenizer.ggml.{key}": value}
    return meta


def _tokenizers() -> None:
    kind = "tokenizer"

    def add(name: str, meta: Callable[[], small.Metadata], ours: str | None, **more: Any) -> None:
        _add(kind, name, lambda: model(meta()), ours, stage="tokenizer", **more)

    words = vocabulary()["tokenizer.ggml.tokens"][1].items
    add("a good BPE vocabulary", vocabulary, None)
    add("a good SentencePiece vocabulary", spm, None)
    add("no tokens", lambda: vocabulary(tokens=None), "tokenizer.ggml.tokens is missing")
    add(
        "an empty list",
        lambda: vocabulary(tokens=(ARRAY, Array(STRING, []))),
        "tokenizer.ggml.tokens is empty",
        why="a vocabulary without tokens encodes nothing",
    )
    add("tokens are numbers", lambda: vocabulary(tokens=(ARRAY, Array(UINT8, [1]))), "should be an array of strings")
    add(
        "tokens are one string",
        lambda: vocabulary(tokens=(STRING, "abc")),
        "should be an array of strings, found string",
    )
    add(
        "fewer types than tokens",
        lambda: vocabulary(token_type=(ARRAY, Array(INT32, [1]))),
        "token_type has 1 entries, but tokenizer.ggml.tokens has 258",
    )
    add(
        "more types than tokens",
        lambda: vocabulary(token_type=(ARRAY, Array(INT32, [1] * 300))),
        None,
    )
    for number in (7, -1, 1 << 30):
        add(
            f"token type {number}", lambda n=number: vocabulary(token_type=(ARRAY, Array(INT32, [1] * 257 + [n]))), None
        )
    add(
        "types are text",
        lambda: vocabulary(token_type=(ARRAY, Array(STRING, ["1"] * 258))),
        "should be an array of numbers, found array of string",
    )
    add("a token twice", lambda: vocabulary(tokens=(ARRAY, Array(STRING, [*words[:-1], "!"]))), None)
    add("a token that is no UTF-8", lambda: vocabulary(tokens=(ARRAY, Array(STRING, [*words[:-1], b"\xff"]))), None)
    add(
        "an empty token",
        lambda: vocabulary(tokens=(ARRAY, Array(STRING, [*words[:-1], ""]))),
        None,
    )
    for key in ("bos", "eos", "eot"):
        add(
            f"{key} beyond the list",
            lambda key=key: vocabulary(**{f"{key}_token_id": (UINT32, 258)}),
            rf"{key}_token_id is 258, but the vocabulary has 258 tokens",
            why="an id that no token has is never produced, so an answer would never end",
        )
    add(
        "bos 2^32-1",
        lambda: vocabulary(bos_token_id=(UINT32, (1 << 32) - 1)),
        r"bos_token_id is 4294967295, but the",
        why="no token has this id; for llama.cpp it means none",
    )
    add("padding beyond the list", lambda: vocabulary(padding_token_id=(UINT32, 999)), None)
    add("eos is text", lambda: vocabulary(eos_token_id=(STRING, "2")), "eos_token_id should be an integer")
    add("no merges", lambda: vocabulary(merges=None), "tokenizer.ggml.merges is missing")
    add(
        "merges that join nothing",
        lambda: vocabulary(merges=(ARRAY, Array(STRING, ["", " ", "a", "a b c", "\xff \xfe"]))),
        None,
    )
    add("unknown pre-tokenizer", lambda: vocabulary(pre=(STRING, "nonsense")), "nonsense")
    add("unknown tokenizer", lambda: vocabulary(model=(STRING, "../gpt2")), "a tokenizer that is not known here")
    add("fewer scores than tokens", lambda: spm(scores=(ARRAY, Array(gb.FLOAT32, [0.0]))), "scores has 1 entries, but")
    add(
        "a score that is no number",
        lambda: spm(scores=(ARRAY, Array(gb.FLOAT32, [float("nan")] * 262))),
        r"scores\[0\] is not a number",
        why="an order by scores that are no numbers is nobody's order",
    )
    add(
        "a token of 2000 characters",
        lambda: spm(tokens=(ARRAY, Array(STRING, [*spm()["tokenizer.ggml.tokens"][1].items[:-1], "a" * 2000]))),
        r"tokens\[261\] has 2000 characters; a SentencePiece token may have 1024",
        why="the ways to cut it are its length squared; the longest in use have a few hundred",
    )
    bytes_ = spm()["tokenizer.ggml.tokens"][1].items
    for name, text in (("beyond a byte", "<0x100>"), ("no number", "<0xZZ>"), ("plain text", "zz")):
        add(
            f"byte token {name}",
            lambda text=text: spm(tokens=(ARRAY, Array(STRING, [*bytes_[:258], text, *bytes_[259:]]))),
            None,
        )
    add(
        "chat template is a number",
        lambda: vocabulary(chat_template=(UINT32, 7)),
        "chat_template should be a string",
        why="a template is text; llama.cpp goes on without one",
    )
    add(
        "chat template is no UTF-8",
        lambda: vocabulary(chat_template=(STRING, b"{{ '\xff' }}")),
        "chat_template is not valid UTF-8",
        why="a template is text; llama.cpp hands the bytes on",
    )


for section in (_splits, _configs, _tokenizers):
    section()
