"""Building from a header: what is checked, what is said, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import gguf_bytes as gb
from support.gguf_bytes import Array
from support.speed import usual_seconds
from tokenizers import Tokenizer

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import GgufmapError, MetadataError, UnsupportedError
from ggufmap.modeldir.pretokenizers import PRE_TOKENIZERS
from ggufmap.modeldir.tokenizer import TokenizerFiles, build_tokenizer

T = "tokenizer.ggml."
UNKNOWN, CONTROL, NORMAL, USER_DEFINED, UNUSED, BYTE = 2, 3, 1, 4, 5, 6
Value = tuple[int, Any]
Header = dict[str, Value]
Build = Callable[[Mapping[str, Value]], TokenizerFiles]


def strings(*items: str | bytes) -> Value:
    return gb.ARRAY, Array(gb.STRING, items)


def integers(*items: int) -> Value:
    return gb.ARRAY, Array(gb.INT32, items)


def floats(*items: float) -> Value:
    return gb.ARRAY, Array(gb.FLOAT32, items)


def bpe() -> Header:
    """`<s> </s> a b c ab abc`."""
    return {
        "general.architecture": (gb.STRING, "llama"),
        T + "model": (gb.STRING, "gpt2"),
        T + "pre": (gb.STRING, "llama-bpe"),
        T + "tokens": strings("<s>", "</s>", "a", "b", "c", "ab", "abc"),
        T + "token_type": integers(CONTROL, CONTROL, *[NORMAL] * 5),
        T + "merges": strings("a b", "ab c"),
        T + "bos_token_id": (gb.UINT32, 0),
        T + "eos_token_id": (gb.UINT32, 1),
    }


def spm() -> Header:
    """`<unk> <s> </s>`, the bytes, then `▁ a b c ab abc` (259 and up)."""
    pieces = ("▁", "a", "b", "c", "ab", "abc")
    return {
        "general.architecture": (gb.STRING, "llama"),
        T + "model": (gb.STRING, "llama"),
        T + "tokens": strings("<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces),
        T + "token_type": integers(UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 6),
        T + "scores": floats(*[0.0] * 259, -1, -2, -3, -4, -5, -6),
    }


def pieces(*texts: str, tied: int = 0, byte_tokens: bool = True) -> Header:
    """Another SentencePiece list: scores fall from the first piece to the last, the last `tied` share one."""
    fixed = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" if byte_tokens else f"x{b}" for b in range(256))]
    falling = [-float(min(i, len(texts) - tied)) for i in range(len(texts))]
    return {
        T + "tokens": strings(*fixed, *texts),
        T + "token_type": integers(UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(texts)),
        T + "scores": floats(*[0.0] * 259, *falling),
        T + "add_space_prefix": (gb.BOOL, 0),
    }


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def make(header: Mapping[str, Value]) -> TokenizerFiles:
        path = tmp_path / "model.gguf"
        path.write_bytes(gb.build([(key, kind, value) for key, (kind, value) in header.items()]))
        with open_checkpoint(path) as checkpoint:
            return build_tokenizer(checkpoint.metadata)

    return make


def ids(files: TokenizerFiles, text: str, add_special: bool = True) -> list[int]:
    encoded: list[int] = Tokenizer.from_str(files.tokenizer_json).encode(text, add_special_tokens=add_special).ids
    return encoded


def test_bpe_files(build: Build) -> None:
    header = bpe() | {
        "llama.context_length": (gb.UINT32, 4096),
        "tokenizer.chat_template": (gb.STRING, "{{ cycler.__init__.__globals__ }}"),
    }
    files = build(header)
    assert files.vocab_size == 7
    assert files.warnings == ()
    assert files.modules == {}
    assert files.chat_template == "{{ cycler.__init__.__globals__ }}"  # as it is, never rendered
    assert ids(files, "abcab</s>") == [0, 6, 5, 1]
    named = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    assert files.config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "fix_mistral_regex": False,
        "model_max_length": 4096,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {"0": {"content": "<s>", **named}, "1": {"content": "</s>", **named}},
    }


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "expected"),
    [
        (None, None, [0, 2]),
        (True, True, [0, 2, 1]),
        (False, True, [2, 1]),
        (False, False, [2]),
    ],
)
def test_bos_and_eos_as_the_file_says(
    add_bos: bool | None, add_eos: bool | None, expected: list[int], build: Build
) -> None:
    header = bpe()
    for key, value in (("add_bos_token", add_bos), ("add_eos_token", add_eos)):
        if value is not None:
            header[T + key] = (gb.BOOL, int(value))
    files = build(header)
    assert ids(files, "a") == expected
    assert ids(files, "a", add_special=False) == [2]
    assert ids(files, "") == [token for token in expected if token != 2]
    assert files.config["add_bos_token"] == (expected[0] == 0)
    assert files.config["add_eos_token"] == (expected[-1] == 1)


def test_transformers_keeps_our_bos_and_eos(build: Build, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = build(bpe() | {T + "add_eos_token": (gb.BOOL, 1)})
    (tmp_path / "tokenizer.json").write_text(files.tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(files.config))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode("ab") == [0, 5, 1]
    assert (loaded.bos_token_id, loaded.eos_token_id) == (0, 1)
    assert len(loaded) == 7


def test_a_bos_token_that_is_ordinary_text_is_not_cut_out(build: Build) -> None:
    files = build(bpe() | {T + "bos_token_id": (gb.UINT32, 2)})
    assert ids(files, "aab") == [2, 2, 5]
    assert "bos_token" not in files.config
    assert "add_bos_token" not in files.config  # transformers would want a bos_token for it
    assert any("BOS token 2 ('a') is ordinary text" in warning for warning in files.warnings)


def test_a_bos_token_that_nobody_names(build: Build) -> None:
    header = bpe()
    del header[T + "bos_token_id"]
    files = build(header)
    assert ids(files, "a") == [2]
    assert any("asks for a BOS token but names none" in warning for warning in files.warnings)


def test_llama_cpp_defaults_for_sentencepiece(build: Build) -> None:
    files = build(spm())
    assert ids(files, "abc") == [1, 259, 264]
    assert {key: files.config[key] for key in ("bos_token", "eos_token", "unk_token")} == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


@pytest.mark.parametrize(("prefix", "expected"), [(1, [259, 263, 259, 261]), (0, [263, 259, 261])])
def test_space_prefix(prefix: int, expected: list[int], build: Build) -> None:
    files = build(spm() | {T + "add_space_prefix": (gb.BOOL, prefix)})
    assert ids(files, "ab b", add_special=False) == expected
    assert Tokenizer.from_str(files.tokenizer_json).decode(expected) == "ab b"


def test_bytes_fall_back_and_come_back(build: Build) -> None:
    files = build(spm() | {T + "add_space_prefix": (gb.BOOL, 0)})
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    encoded = tokenizer.encode("aé🦙\n", add_special_tokens=False).ids
    assert encoded == [260, *(3 + byte for byte in "é🦙\n".encode())]
    assert tokenizer.decode(encoded) == "aé🦙\n"
    assert tokenizer.decode(encoded[:3]) == "aé"
    assert tokenizer.decode(encoded[:2]) == "a\ufffd"  # a character cut short


def test_user_defined_tokens_are_cut_out_and_shown(build: Build) -> None:
    header = bpe() | {T + "token_type": integers(CONTROL, CONTROL, NORMAL, NORMAL, NORMAL, USER_DEFINED, NORMAL)}
    files = build(header)
    assert ids(files, "abc<s>") == [0, 5, 4, 0]
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    assert tokenizer.decode([0, 5, 4, 0]) == "abc"


def test_known_end_texts_become_control_tokens(build: Build) -> None:
    tokens = ["<|im_end|>", "<|channel|>", "a"]
    header = bpe() | {
        T + "tokens": strings("<s>", "</s>", *tokens),
        T + "token_type": integers(CONTROL, CONTROL, NORMAL, CONTROL, NORMAL),
        T + "merges": strings(),
    }
    files = build(header)
    added = {token["content"]: token["special"] for token in json.loads(files.tokenizer_json)["added_tokens"]}
    assert added == {"<s>": True, "</s>": True, "<|im_end|>": True, "<|channel|>": False}


def test_phi3_swallows_blanks_after_special_tokens(build: Build) -> None:
    header = spm() | {"general.name": (gb.STRING, "Phi-3 mini"), T + "add_space_prefix": (gb.BOOL, 0)}
    assert ids(build(header), "</s> \n\ta<s> a", add_special=False) == [2, 260, 1, 259, 260]


def test_a_missing_pre_tokenizer_is_default_with_a_warning(build: Build) -> None:
    header = bpe()
    del header[T + "pre"]
    files = build(header)
    assert any("tokenizer.ggml.pre is missing" in warning for warning in files.warnings)
    patterns = json.loads(files.tokenizer_json)["pre_tokenizer"]["pretokenizers"]
    assert len(patterns) == len(PRE_TOKENIZERS["default"].patterns) + 1


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({T + "pre": (gb.STRING, "lama-bpe")}, "nearest known: llama-bpe"),
        ({T + "pre": (gb.STRING, "qwen-2")}, "nearest known: qwen2"),
        ({T + "model": (gb.STRING, "gpt-2")}, "nearest known: gpt2"),
        ({T + "pre": (gb.STRING, "zzzzzzzz")}, "zzzzzzzz"),
        ({T + "model": (gb.STRING, "t5")}, "'t5'"),
    ],
)
def test_what_is_not_known_is_refused_with_help(change: Header, nearest: str, build: Build) -> None:
    with pytest.raises(UnsupportedError, match="not known here") as raised:
        build(bpe() | change)
    assert nearest in raised.value.message
    assert "model.gguf" in raised.value.message
    assert raised.value.hint is not None
    assert "--tokenizer DIR" in raised.value.hint
    known = sorted(PRE_TOKENIZERS) if T + "pre" in change else ["gpt2", "llama"]
    assert all(name in raised.value.hint for name in known)


def without(header: Header, key: str) -> Header:
    return {name: value for name, value in header.items() if name != key}


NAN = float("nan")
HOSTILE: list[tuple[str, Header, str]] = [
    ("no model", without(bpe(), T + "model"), "tokenizer.ggml.model is missing"),
    ("model is a number", bpe() | {T + "model": (gb.UINT32, 1)}, "should be a string"),
    ("no tokens", without(bpe(), T + "tokens"), "tokenizer.ggml.tokens is missing"),
    ("tokens are numbers", bpe() | {T + "tokens": integers(1, 2)}, "should be an array of strings"),
    ("tokens is a string", bpe() | {T + "tokens": (gb.STRING, "a")}, "should be an array of strings"),
    ("empty tokens", bpe() | {T + "tokens": strings()}, "is empty"),
    ("types too short", bpe() | {T + "token_type": integers(1)}, "has 1 entries, but tokenizer.ggml.tokens has 7"),
    ("types are floats", bpe() | {T + "token_type": floats(*[1.0] * 7)}, "should hold numbers, found"),
    ("types is a number", bpe() | {T + "token_type": (gb.UINT32, 1)}, "should be an array of numbers"),
    ("no merges", without(bpe(), T + "merges"), "tokenizer.ggml.merges is missing"),
    ("merges are numbers", bpe() | {T + "merges": integers(1)}, "should be an array of strings"),
    ("bos too high", bpe() | {T + "bos_token_id": (gb.UINT32, 7)}, "bos_token_id is 7, but the vocabulary has 7"),
    ("eos too high", bpe() | {T + "eos_token_id": (gb.UINT64, 2**63)}, "eos_token_id is 9223372036854775808"),
    ("eot negative", bpe() | {T + "eot_token_id": (gb.INT32, -1)}, "eot_token_id is -1"),
    ("bos is text", bpe() | {T + "bos_token_id": (gb.STRING, "<s>")}, "should be an integer"),
    ("add_bos is a number", bpe() | {T + "add_bos_token": (gb.UINT32, 1)}, "should be a bool"),
    ("pre is a number", bpe() | {T + "pre": (gb.UINT32, 1)}, "should be a string"),
    ("name is a number", spm() | {"general.name": (gb.UINT32, 1)}, "should be a string"),
    ("template is no text", bpe() | {"tokenizer.chat_template": (gb.STRING, b"\xff")}, "not valid UTF-8"),
    ("template is a number", bpe() | {"tokenizer.chat_template": (gb.UINT32, 1)}, "should be a string"),
    ("context is text", bpe() | {"llama.context_length": (gb.STRING, "x")}, "should be an integer"),
    ("scores too short", spm() | {T + "scores": floats(1.0)}, "has 1 entries"),
    ("scores are text", spm() | {T + "scores": strings("1")}, "should be an array of numbers"),
    ("a score is NaN", spm() | {T + "scores": floats(*[0.0] * 264, NAN)}, r"scores\[264\] is not a number"),
    ("no scores", without(spm(), T + "scores"), "scores is missing"),
    ("all scores equal", spm() | {T + "scores": floats(*[-1000.0] * 265)}, "2 of 2 tokens share their score"),
    ("a token of a million characters", spm() | pieces("a" * 1_000_000), "has 1000000 characters"),
]


@pytest.mark.parametrize(("header", "message"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_headers_are_refused_in_words(header: Header, message: str, build: Build) -> None:
    with pytest.raises((MetadataError, UnsupportedError), match=message) as raised:
        build(header)
    assert isinstance(raised.value, GgufmapError)
    assert "model.gguf" in raised.value.message


ODD: list[tuple[str, Header, str]] = [
    ("no types", without(bpe(), T + "token_type"), "every token counts as normal text"),
    ("types too long", bpe() | {T + "token_type": integers(*[1] * 9)}, "has 9 entries"),
    (
        "types of no meaning",
        bpe() | {T + "token_type": integers(3, 3, 99, -5, 0, 1, 1)},
        "2 tokens have a type beyond 0 to 6 ([2] is 99)",
    ),
    ("one text twice", bpe() | {T + "tokens": strings(*"abcdefa")}, "1 tokens have the text of an earlier one"),
    (
        "byte tokens that spell none",
        spm() | pieces("ab", byte_tokens=False),
        "256 tokens of type byte do not spell one",
    ),
    ("a token without text", bpe() | {T + "tokens": strings("<s>", "</s>", *"abc", "ab", "")}, "have no text"),
    (
        "a token of bytes",
        bpe() | {T + "tokens": strings("<s>", "</s>", *"abc", "ab", b"\xff\xfe")},
        "1 tokens are not valid UTF-8, the first is 6 (ff fe)",
    ),
    ("pad too high", bpe() | {T + "padding_token_id": (gb.UINT32, 9)}, "padding_token_id is 9"),
    ("a merge without a space", bpe() | {T + "merges": strings("ab", "a b")}, "do not join two tokens"),
    ("a merge of no tokens", bpe() | {T + "merges": strings("x y", "a b", "b c")}, "2 entries do not join"),
    ("a merge of bytes", bpe() | {T + "merges": strings(b"\xff \xfe", "a b")}, "do not join"),
    ("merges twice", bpe() | {T + "merges": strings("a b", "ab c", "a b")}, ""),
    ("no byte tokens", spm() | pieces(*"▁abc", "ab", byte_tokens=False), "no byte token for 256 bytes"),
    ("tied scores", spm() | pieces(*"▁abcde", "de", "cde", "bcde", "ab", "bc", tied=2), "2 tokens share their score"),
    ("a character that is no token", spm() | pieces(*"▁ab", "ab", "aé"), "a character that is no token itself ('aé')"),
    ("scores as integers", spm() | {T + "scores": integers(*range(265))}, ""),
]


@pytest.mark.parametrize(("header", "warning"), [case[1:] for case in ODD], ids=[case[0] for case in ODD])
def test_odd_headers_build_and_say_so(header: Header, warning: str, build: Build) -> None:
    files = build(header)
    Tokenizer.from_str(files.tokenizer_json)
    if warning:
        assert any(warning in said for said in files.warnings), files.warnings
    else:
        assert not any("entries" in said for said in files.warnings)


def test_of_two_tokens_with_one_text_the_first_is_produced(build: Build) -> None:
    words = ("<s>", "</s>", "a", "b", "[DUPLICATE_5]", "a", "ab")
    files = build(bpe() | {T + "tokens": strings(*words)})
    assert ids(files, "a", add_special=False) == [2]
    vocabulary = Tokenizer.from_str(files.tokenizer_json).get_vocab()
    assert len(vocabulary) == 7
    assert vocabulary["[DUPLICATE_5]"] == 4
    assert vocabulary["[DUPLICATE_5]_"] == 5


def test_the_first_of_two_equal_merges_counts(build: Build) -> None:
    merges = ("a b", "b c", "a b")
    header = bpe() | {
        T + "tokens": strings("<s>", "</s>", "a", "b", "c", "ab", "bc"),
        T + "merges": strings(*merges),
    }
    assert ids(build(header), "abc", add_special=False) == [5, 4]


def test_runs_of_one_character_may_share_a_score(build: Build) -> None:
    """Llama 2's blanks all have one score; the longest wins from the left, as in llama.cpp."""
    files = build(spm() | pieces(*("▁" * n for n in range(1, 9)), tied=8))
    assert not files.warnings
    assert ids(files, " " * 19, add_special=False) == [266, 266, 261]


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Path]:
    """160,000 merges (case G2, hf#40334: most of an hour in a converter that searches a list for each)."""
    letters = [chr(0x4E00 + i) for i in range(400)]
    pairs = [(a, b) for a in letters for b in letters]
    header = bpe() | {
        T + "tokens": strings("<s>", "</s>", *letters, *(a + b for a, b in pairs)),
        T + "token_type": integers(CONTROL, CONTROL, *[NORMAL] * (400 + len(pairs))),
        T + "merges": strings(*(f"{a} {b}" for a, b in pairs)),
    }
    path = tmp_path / "many.gguf"
    path.write_bytes(gb.build([(key, kind, value) for key, (kind, value) in header.items()]))
    yield path


def test_160_000_merges_take_a_second(many: Path) -> None:
    with open_checkpoint(many) as checkpoint:
        spent, files = usual_seconds(lambda: build_tokenizer(checkpoint.metadata), 1.5)
    assert len(json.loads(files.tokenizer_json)["model"]["merges"]) == 160_000
    assert spent < 1.5


def test_gemma_builds_in_under_three_seconds(gemma: Path) -> None:
    def build() -> TokenizerFiles:
        with open_checkpoint(gemma) as checkpoint:
            return build_tokenizer(checkpoint.metadata)

    spent, files = usual_seconds(build, 3)
    assert spent < 3
    assert files.vocab_size == 262_144
    assert files.config["bos_token"] == "<bos>"
    assert files.config["model_max_length"] == 32_768
