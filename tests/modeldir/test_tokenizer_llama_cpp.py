"""Ids, stop tokens and decoded text equal to a running llama.cpp (xllamacpp's own library, vocabulary only)."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support.gguf_bytes import Array
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir.pretokenizers import PRE_TOKENIZERS
from ggufmap.modeldir.stop_tokens import stop_token_ids
from ggufmap.modeldir.tokenizer import TokenizerFiles, build_tokenizer

PLAIN = [
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n \n\n \n\n\n",
    "\t",
    "\t\t\tx",
    " \t\r\n mixed \u00a0\u2003\u3000\u2028 blanks \x0b\x0c\x85",
    "Hello world",
    " Hello world",
    "Hello world ",
    "  Hello   world  ",
    "\nHello\n",
    "Hello, y'all! How's it going? I'LL say we'Ve don't they're 'tis",
    "the quick brown fox jumps over the lazy dog",
    "CamelCaseHTTPServer snake_case_name kebab-case-name SCREAMING_CASE",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "def f(x):\n    if x > 0:\n\t\treturn {'a': [1, 2, 3]}  # done\n    return None\n",
    'int main(void) { printf("%d\\n", 0x1F << 3); return 0; } // café',
    "SELECT * FROM t WHERE a <> 'b' AND c >= 10;",
    '<div class="x"><p>Hi &amp; bye</p><br/></div>',
    "https://example.org/a/b.html?q=1&r=%20#frag user@example.com",
    "C:\\Users\\me\\file.txt ../../etc/passwd",
    "x = y**2 + z//3 - ~w ^ (a | b) & c != d == e",
    "$E = mc^2$ \\frac{a}{b} \\alpha",
    '{"key": "value", "list": [true, false, null, 1.5e-10]}',
    "1 12 123 1234 12345 123456 1234567 12345678901234567890",
    "3.14159 1,234,567.89 -42 +7 1e10 50% #1 2nd ½ ² Ⅷ ٣٤٥ ४५ １２３",
    "2024-02-29T12:34:56Z 192.168.0.1 +49 (0)30 123456",
    "0000000000 1000000000000",
    "!!! ??? ... ---- ==== **** //// ((())) [[[]]] ~~~ ```",
    "“quotes” ‘single’ «guillemets» — dash – en … ellipsis",
    "我想在apple工作1314151天～。你好，世界！",
    "日本語のテキストとカタカナ、ひらがな。「引用」",
    "한국어 텍스트입니다. 안녕하세요!",
    "ㄱㄴㄷ ㄅㄆㄇ 漢字假名交じり文",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "שלום עולם ״ציטוט״",
    "नमस्ते दुनिया क्षत्रिय",
    "สวัสดีชาวโลก ไม่มีช่องว่าง",
    "កាន់តែពិសេសអាចខលចេញ",
    "Привет, мир! Ёлка и съезд",
    "Γειά σου Κόσμε ἀρχή",
    "Größe, naïve façade, Åse, İstanbul, ﬁligree, ſhort, Ⱥ",
    "Tiếng Việt có dấu",
    "e\u0301 decomposed, a\u0308o\u0308u\u0308, \u1100\u1161\u11a8, \u212b",
    "zero\u200bwidth\u200djoin\ufeffbom\u00adsoft",
    "🦙.cpp 😀😃 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ❤️ 🫩",
    "🚀 (normal) 😶‍🌫️ (multiple emojis concatenated) ✅",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈𐌰 𓀀 𠜎 \U0001cc00 \U00010d4a",
    "mixed русский中文English日本語عربي123한국어",
    "invalid \ufffd\ufffd bytes " + b"a\xffb\xc3(\xe2\x28\xa1".decode(errors="replace"),
    "control \x00\x01\x1b[31m\x7f chars",
    "▁literal▁lower▁one▁eighth▁block ▁▁▁",
    "<0x0A> <0xE4><0xB8> literal byte tokens",
    "a" * 5000,
    " " * 300,
    "\n" * 100,
    "=" * 257,
    "ab" * 2000,
    "中" * 1000,
    "🦙" * 500,
    "1" * 1000,
    "aaaa bbbb " * 200,
    "word\n" * 50 + "  indented\n" * 20,
    "trailing blanks   \n   ",
    "\u3000ideographic\u3000space\u3000",
    " 'S 'T 'RE 'VE 'M 'LL 'D 's 't 're 've 'm 'll 'd 'x",
    "IMGIMGABCZ <sentinel:12> <h1>",
]
SPECIAL = [
    "<bos>Hello<eos>",
    "<start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n",
    "<｜begin▁of▁sentence｜><｜User｜>What is 1+1?<｜Assistant｜><think>\nhm\n</think>\n\n2<｜end▁of▁sentence｜>",
    "text <s> and </s> and <unk> and <pad>",
    " <bos> spaces <bos>around <bos>",
    '<tool_call>\n{"name": "f"}\n</tool_call>',
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "<|endoftext|><|endoftext|> <|endoftext|>",
    "<unused0><unused99> <start_of_image><end_of_image> [multimodal]",
    "<|im_star|> <|im_end| > <bo s> not special",
]
TEXTS = PLAIN + SPECIAL


class Params(ctypes.Structure):
    """`llama_model_params`, larger than it is: only passed from llama.cpp back to llama.cpp."""

    _fields_ = (("raw", ctypes.c_ubyte * 256),)


VOCAB_ONLY = 72
"""Offset of the first of six bools: vocab_only, check_tensors, use_extra_bufts, no_host, no_alloc, load_mtp."""


def library() -> ctypes.CDLL:
    import xllamacpp.xllamacpp as extension

    lib = ctypes.CDLL(extension.__file__)
    pointer, number, flag = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
    numbers = ctypes.POINTER(number)
    for name, result, arguments in (
        ("llama_backend_init", None, ()),
        ("llama_log_set", None, (pointer, pointer)),
        ("llama_model_default_params", Params, ()),
        ("llama_model_load_from_file", pointer, (ctypes.c_char_p, Params)),
        ("llama_model_free", None, (pointer,)),
        ("llama_model_get_vocab", pointer, (pointer,)),
        ("llama_vocab_n_tokens", number, (pointer,)),
        ("llama_vocab_is_eog", flag, (pointer, number)),
        ("llama_tokenize", number, (pointer, ctypes.c_char_p, number, numbers, number, flag, flag)),
        ("llama_token_to_piece", number, (pointer, number, ctypes.c_char_p, number, number, flag)),
        ("llama_detokenize", number, (pointer, numbers, number, ctypes.c_char_p, number, flag, flag)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
SILENT = LOG(lambda level, text, data: None)


class LlamaCpp:
    """The vocabulary of one GGUF in llama.cpp."""

    def __init__(self, lib: ctypes.CDLL, path: Path) -> None:
        self.lib = lib
        params = lib.llama_model_default_params()
        bools = bytes(params.raw[VOCAB_ONLY : VOCAB_ONLY + 5])
        assert bools == b"\0\0\1\0\0", f"llama_model_params has another layout: {bytes(params.raw).hex(' ')}"
        params.raw[VOCAB_ONLY] = 1
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp does not load {path}"
        self.vocab = lib.llama_model_get_vocab(self.model)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        raw = text.encode()
        room = (ctypes.c_int32 * (3 * len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), room, len(room), add_special, True)
        assert count >= 0
        return list(room[:count])

    def decode(self, ids: list[int]) -> bytes:
        room = ctypes.create_string_buffer(256 * len(ids) + 256)
        given = (ctypes.c_int32 * max(len(ids), 1))(*ids)
        count = self.lib.llama_detokenize(self.vocab, given, len(ids), room, len(room), False, False)
        assert count >= 0
        return room.raw[:count]

    def piece(self, token: int) -> bytes:
        room = ctypes.create_string_buffer(4096)
        count = self.lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, False)
        assert count >= 0
        return room.raw[:count]

    def stops(self) -> set[int]:
        count = self.lib.llama_vocab_n_tokens(self.vocab)
        return {token for token in range(count) if self.lib.llama_vocab_is_eog(self.vocab, token)}

    def close(self) -> None:
        self.lib.llama_model_free(self.model)


@pytest.fixture(scope="module")
def lib() -> ctypes.CDLL:
    lib = library()
    lib.llama_log_set(SILENT, None)
    lib.llama_backend_init()
    return lib


@dataclass(frozen=True)
class Pair:
    """One vocabulary in llama.cpp and here."""

    llama: LlamaCpp
    files: TokenizerFiles
    tokenizer: Tokenizer
    stops: set[int]


def pair(lib: ctypes.CDLL, path: Path) -> Pair:
    with open_checkpoint(path, check=False) as checkpoint:
        files = build_tokenizer(checkpoint.metadata)
        stops = {stop.id for stop in stop_token_ids(checkpoint.metadata)}
    return Pair(LlamaCpp(lib, path), files, Tokenizer.from_str(files.tokenizer_json), stops)


@pytest.fixture(scope="module")
def gemma_pair(lib: ctypes.CDLL, gemma: Path) -> Iterator[Pair]:
    both = pair(lib, gemma)
    yield both
    both.llama.close()


@pytest.fixture(scope="module")
def qwen_pair(lib: ctypes.CDLL, qwen_header: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The real header without its tensor table: llama.cpp insists on tensor data where a table is."""
    with open_checkpoint(qwen_header, check=False) as checkpoint:
        end = checkpoint.splits[0].header.data_offset
    with qwen_header.open("rb") as file:
        header = bytearray(file.read(end))
    header[8:16] = struct.pack("<Q", 0)
    path = tmp_path_factory.mktemp("qwen") / "header.gguf"
    path.write_bytes(header)
    both = pair(lib, path)
    yield both
    both.llama.close()


def unequal(both: Pair, texts: list[str], encode: Callable[[str, bool], list[int]] | None = None) -> list[str]:
    def here(text: str, add: bool) -> list[int]:
        return both.tokenizer.encode(text, add_special_tokens=add).ids

    ours = encode or here
    return [text for text in texts for add in (True, False) if ours(text, add) != both.llama.encode(text, add)]


def test_there_are_enough_texts() -> None:
    assert len(TEXTS) == len(set(TEXTS)) >= 60


@pytest.mark.parametrize("name", ["gemma_pair", "qwen_pair"])
def test_ids_equal_on_real_files(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    both: Pair = request.getfixturevalue(name)
    assert unequal(both, TEXTS) == []
    assert both.files.warnings == ()

    (tmp_path / "tokenizer.json").write_text(both.files.tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(both.files.config))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3_text" if name == "gemma_pair" else "qwen2"})
    )
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert unequal(both, TEXTS, lambda text, add: loaded.encode(text, add_special_tokens=add)) == []


@pytest.mark.parametrize("name", ["gemma_pair", "qwen_pair"])
def test_decoding_equals(name: str, request: pytest.FixtureRequest) -> None:
    both: Pair = request.getfixturevalue(name)
    for text in TEXTS:
        ids = both.llama.encode(text, False)
        assert both.tokenizer.decode(ids) == both.llama.decode(ids).decode(errors="replace"), text
    for text in PLAIN:
        # A SentencePiece vocabulary cannot tell U+2581 from a space.
        expected = text.replace("▁", " ") if name == "gemma_pair" else text
        assert both.tokenizer.decode(both.llama.encode(text)) == expected


@pytest.mark.parametrize("name", ["gemma_pair", "qwen_pair"])
def test_streaming_gives_the_same_text(name: str, request: pytest.FixtureRequest) -> None:
    """As vLLM does it: token by token, text only when characters are complete."""
    both: Pair = request.getfixturevalue(name)
    for text in TEXTS:
        if "\ufffd" in text:
            continue  # the stream takes it for an unfinished character
        stream = decoders.DecodeStream(skip_special_tokens=True)
        ids = both.llama.encode(text, False)
        streamed = "".join(stream.step(both.tokenizer, token) or "" for token in ids)
        assert streamed == both.llama.decode(ids).decode(), text


@pytest.mark.parametrize("name", ["gemma_pair", "qwen_pair"])
def test_stop_tokens_equal_on_real_files(name: str, request: pytest.FixtureRequest) -> None:
    both: Pair = request.getfixturevalue(name)
    assert both.stops == both.llama.stops()


def test_long_lines_stay_linear(gemma_pair: Pair, qwen_pair: Pair) -> None:
    from time import process_time

    for text in ("x" * 100_000, "ab" * 50_000, "1" * 100_000, " " * 100_000, "中" * 100_000, "\n" * 100_000):
        for both in (gemma_pair, qwen_pair):
            start = process_time()
            both.tokenizer.encode(text)
            assert process_time() - start < 2


def published(llama_cpp: Path) -> list[Path]:
    skipped = ("bert-bge", "nomic-bert-moe")  # neither SentencePiece BPE nor byte-level BPE
    found = sorted((llama_cpp / "models").glob("ggml-vocab-*.gguf"))
    return [path for path in found if path.stem.removeprefix("ggml-vocab-") not in skipped]


def test_published_vocabularies(lib: ctypes.CDLL, llama_cpp: Path) -> None:
    paths = published(llama_cpp)
    assert len(paths) == 17
    for path in paths:
        both = pair(lib, path)
        assert unequal(both, TEXTS) == [], path.name
        assert both.stops == both.llama.stops(), path.name
        both.llama.close()


def test_letters_that_are_tokens_decode_to_themselves(lib: ctypes.CDLL, llama_cpp: Path) -> None:
    both = pair(lib, llama_cpp / "models" / "ggml-vocab-deepseek-coder.gguf")
    text = "für þøöùú ÿ ÷ Áý"
    ids = both.llama.encode(text, False)
    assert b"".join(both.llama.piece(token) for token in ids).decode() == text
    assert both.tokenizer.decode(ids) == text
    both.llama.close()


def llama_header(model: str, tokens: list[str], types: list[int], *more: gb.Entry) -> bytes:
    return gb.build(
        [
            ("general.architecture", gb.STRING, "llama"),
            ("llama.context_length", gb.UINT32, 64),
            ("llama.embedding_length", gb.UINT32, 32),
            ("llama.block_count", gb.UINT32, 1),
            ("llama.feed_forward_length", gb.UINT32, 32),
            ("llama.attention.head_count", gb.UINT32, 1),
            ("llama.attention.layer_norm_rms_epsilon", gb.FLOAT32, 1e-5),
            ("llama.rope.dimension_count", gb.UINT32, 32),
            ("tokenizer.ggml.model", gb.STRING, model),
            ("tokenizer.ggml.tokens", gb.ARRAY, Array(gb.STRING, tokens)),
            ("tokenizer.ggml.token_type", gb.ARRAY, Array(gb.INT32, types)),
            *more,
        ]
    )


CONTROL, NORMAL, BYTE = 3, 1, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="module")
def boundless() -> tuple[list[str], list[str]]:
    """Tokens and merges learnt from whole texts, so that a word cut elsewhere gives other ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=6000, min_frequency=1, show_progress=False, initial_alphabet=alphabet, max_token_length=40
    )
    tokenizer.train_from_iterator([text for text in PLAIN if len(text) < 300], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(merge) for merge in model["merges"]]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer(
    name: str, boundless: tuple[list[str], list[str]], lib: ctypes.CDLL, tmp_path: Path
) -> None:
    learnt, merges = boundless
    # A whole word that no merge makes: only tokenizers that look words up first find it.
    tokens = ["<s>", "</s>", *learnt, "Ġlazy!", *BYTES]
    types = [CONTROL, CONTROL] + [NORMAL] * (len(learnt) + 1) + [BYTE] * 256
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(
        llama_header(
            "gpt2",
            tokens,
            types,
            ("tokenizer.ggml.pre", gb.STRING, name),
            ("tokenizer.ggml.merges", gb.ARRAY, Array(gb.STRING, merges)),
            ("tokenizer.ggml.bos_token_id", gb.UINT32, 0),
            ("tokenizer.ggml.eos_token_id", gb.UINT32, 1),
        )
    )
    both = pair(lib, path)
    assert unequal(both, [*PLAIN, "the lazy!", "<s>x</s>"]) == []
    both.llama.close()


@pytest.mark.parametrize("seed", range(12))
def test_known_texts_stop_and_are_cut_out(seed: int, lib: ctypes.CDLL, tmp_path: Path) -> None:
    """Any mixture of texts that llama.cpp knows, of any type: same stop tokens, same ids."""
    import random

    from ggufmap.modeldir import stop_tokens

    chooser = random.Random(seed)
    infill = [chooser.choice(group.texts) for group in stop_tokens._INFILL]  # of two, llama.cpp takes either
    texts = [*stop_tokens.END_TEXTS, *stop_tokens._ALWAYS_SHOWN, *infill]
    known = [text for text in texts if chooser.random() < 0.8]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokens = [*alphabet, *known]
    types = [NORMAL] * len(alphabet) + chooser.choices([NORMAL, CONTROL, 4], k=len(known))
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(
        llama_header(
            "gpt2",
            tokens,
            types,
            ("tokenizer.ggml.pre", gb.STRING, "gpt-2"),
            ("tokenizer.ggml.merges", gb.ARRAY, Array(gb.STRING, [])),
            ("tokenizer.ggml.eos_token_id", gb.UINT32, chooser.randrange(len(alphabet), len(tokens))),
            ("tokenizer.ggml.eot_token_id", gb.UINT32, chooser.randrange(len(tokens))),
        )
    )
    both = pair(lib, path)
    assert both.stops == both.llama.stops()
    chosen = ["".join(chooser.choices([*texts, "a", " ", "<", "|"], k=12)) for _ in range(50)]
    assert unequal(both, chosen) == []
    for text in chosen:
        ids = both.llama.encode(text)
        assert both.tokenizer.decode(ids).encode() == b"".join(both.llama.piece(token) for token in ids)
    both.llama.close()


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_scores(seed: int, prefix: bool, lib: ctypes.CDLL, tmp_path: Path) -> None:
    """SentencePiece vocabularies that no trainer would make: scores in any order, parts missing."""
    import random

    chooser = random.Random(seed)
    letters = "ab▁é" if seed % 2 else "abc▁"
    words = {"".join(chooser.choices(letters, k=chooser.randint(2, 5))) for _ in range(40)}
    chosen = [*letters, *sorted(words)]
    chooser.shuffle(chosen)
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *chosen]
    types = [2, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(chosen)
    scores = [0.0] * 259 + [-float(i) for i in range(len(chosen))]
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(
        llama_header(
            "llama",
            tokens,
            types,
            ("tokenizer.ggml.scores", gb.ARRAY, Array(gb.FLOAT32, scores)),
            ("tokenizer.ggml.add_space_prefix", gb.BOOL, int(prefix)),
        )
    )
    both = pair(lib, path)
    texts = ["".join(chooser.choices(letters.replace("▁", " ") + "zab", k=chooser.randint(1, 40))) for _ in range(200)]
    assert unequal(both, texts) == []
    for text in texts:
        ids = both.llama.encode(text, False)
        assert both.tokenizer.decode(ids) == both.llama.decode(ids).decode()
    both.llama.close()
