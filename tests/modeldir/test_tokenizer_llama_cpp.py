"""Ids, stop tokens and decoded text equal to a running llama.cpp (xllamacpp's own library, vocabulary only)."""

from __future__ import annotations

import ctypes
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import pytest
from modeldir.llama_cpp_vocab import SILENT, LlamaCpp, library
from modeldir.tokenizer_texts import PLAIN, TEXTS
from support import gguf_bytes as gb
from support.gguf_bytes import Array
from support.speed import slower
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir import stop_tokens
from ggufmap.modeldir.pretokenizers import PRE_TOKENIZERS
from ggufmap.modeldir.stop_tokens import stop_token_ids
from ggufmap.modeldir.tokenizer import TokenizerFiles, build_tokenizer


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
    for text in ("x" * 100_000, "ab" * 50_000, "1" * 100_000, " " * 100_000, "中" * 100_000, "\n" * 100_000):
        for both in (gemma_pair, qwen_pair):
            start = process_time()
            both.tokenizer.encode(text)
            assert process_time() - start < 2 * slower()


# All under models/ but two: bert-bge and nomic-bert-moe, neither SentencePiece BPE nor byte-level BPE.
PUBLISHED = (
    *("aquila", "baichuan", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "gpt-neox"),
    *("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)


def test_no_published_vocabulary_is_left_out(llama_cpp: Path) -> None:
    found = {path.stem.removeprefix("ggml-vocab-") for path in (llama_cpp / "models").glob("ggml-vocab-*.gguf")}
    assert found == {*PUBLISHED, "bert-bge", "nomic-bert-moe"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vocabularies(name: str, lib: ctypes.CDLL, llama_cpp: Path) -> None:
    both = pair(lib, llama_cpp / "models" / f"ggml-vocab-{name}.gguf")
    assert unequal(both, TEXTS) == []
    assert both.stops == both.llama.stops()
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
