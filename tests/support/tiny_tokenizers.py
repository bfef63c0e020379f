"""Two kinds of real, tiny tokenizers: byte-level BPE (Qwen, Llama 3) and sentencepiece BPE (Llama, Gemma)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCAB_SIZE = 512

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog, and it doesn't stop.",
    "In 2024 we've counted 1234567 tensors; 3.14 of them weren't ours!",
    "Grüße aus München — ça va? Привет, 你好, こんにちは 🦙",
    "    def f(x):\n\t\treturn x  # indented",
)


def corpus() -> Iterator[str]:
    """Some text to learn merges from; the same every time."""
    chooser = random.Random(0)
    syllables = ["ka", "lo", "mi", "ter", "an", "ing", "the", "qu", "es", "bo", "rd", "to", "ne", "vi", "sh", "um"]
    yield from _SENTENCES * 8
    for _ in range(1500):
        words = ("".join(chooser.choices(syllables, k=chooser.randint(1, 4))) for _ in range(8))
        yield " ".join(words)


def write_qwen(folder: Path, *more: str) -> None:
    """A Qwen tokenizer: no BOS token, one pad/end pair of special tokens, and `more` of them."""
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *more)
    tokenizer = _byte_level(QWEN_SPLIT, specials, ignore_merges=False, nfc=True)
    _save_fast(tokenizer, folder, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    path = folder / "tokenizer_config.json"
    # Real repositories say so; transformers 5 drops the key when saving.
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": False}, indent=1))


def write_llama3(folder: Path) -> None:
    """A Llama 3 tokenizer: puts its BOS token in front by a post-processor."""
    from tokenizers import processors

    specials = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    tokenizer = _byte_level(LLAMA3_SPLIT, specials, ignore_merges=True, nfc=False)
    bos = specials[0]
    template = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos} $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    _save_fast(tokenizer, folder, bos_token=bos, eos_token="<|end_of_text|>")


def write_llama(folder: Path) -> None:
    """A Llama 2 tokenizer: sentencepiece with byte fallback and a space in front."""
    _train_sentencepiece(folder, unk_id=0, bos_id=1, eos_id=2, pad_id=-1, add_dummy_prefix=True)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _save_sentencepiece(folder, "LlamaTokenizer", named, added={0: "<unk>", 1: "<s>", 2: "</s>"})


def write_qwen_vision(folder: Path) -> None:
    """The same with the marks of images and videos."""
    write_qwen(folder, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")


def write_gemma(folder: Path, *more: str, **named_more: str) -> None:
    """A Gemma tokenizer: sentencepiece, no space in front, turn markers (and `more`) in the vocabulary."""
    turns = ["<mask>", "<start_of_turn>", "<end_of_turn>", *more]  # without <mask>, GemmaTokenizer would append one
    options: dict[str, Any] = {"unk_piece": "<unk>", "bos_piece": "<bos>", "eos_piece": "<eos>", "pad_piece": "<pad>"}
    options |= {"user_defined_symbols": turns, "add_dummy_prefix": False}
    _train_sentencepiece(folder, pad_id=0, eos_id=1, bos_id=2, unk_id=3, **options)
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    added = dict(enumerate(["<pad>", "<eos>", "<bos>", "<unk>", *turns]))
    _save_sentencepiece(folder, "GemmaTokenizer", {**named, **named_more}, added)


def write_gemma_vision(folder: Path) -> None:
    """The same with the marks of images, which the processor finds by their names, and the line ends around them."""
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    write_gemma(folder, *marks.values(), *("\n" * count for count in range(1, 5)), **marks)


def write_glm(folder: Path) -> None:
    """A GLM-4 tokenizer: no BOS, roles as special tokens."""
    specials = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>")
    tokenizer = _byte_level(LLAMA3_SPLIT, specials, ignore_merges=True, nfc=False)
    _save_fast(tokenizer, folder, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": False}, indent=1))


WRITERS = {
    "glm": write_glm,
    "qwen": write_qwen,
    "qwen_vision": write_qwen_vision,
    "llama3": write_llama3,
    "llama": write_llama,
    "gemma": write_gemma,
    "gemma_vision": write_gemma_vision,
}


def _byte_level(split: str, specials: tuple[str, ...], *, ignore_merges: bool, nfc: bool) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(list(specials))  # after the merges, where the real ones have them
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def _save_fast(tokenizer: Any, folder: Path, **named: str) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=CHAT_TEMPLATE, **named)
    fast.save_pretrained(folder)


def _train_sentencepiece(folder: Path, **options: Any) -> None:
    import sentencepiece

    with (folder / "tokenizer.model").open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=corpus(),
            model_writer=model,
            vocab_size=VOCAB_SIZE,
            model_type="bpe",
            byte_fallback=True,
            character_coverage=0.995,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            num_threads=1,
            minloglevel=2,
            **options,
        )


def _save_sentencepiece(folder: Path, tokenizer_class: str, named: dict[str, str], added: dict[int, str]) -> None:
    """The files beside tokenizer.model, tokenizer.json included, as transformers itself writes them."""
    from transformers import AutoTokenizer

    token = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config = {"tokenizer_class": tokenizer_class, "add_bos_token": True, "add_eos_token": False, **named}
    decoder = {str(i): {"content": content, **token} for i, content in added.items()}
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**config, "added_tokens_decoder": decoder}, indent=1))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    saved = json.loads(path.read_text())
    saved.pop("vocab_file", None)  # names the folder of this very run
    # transformers 5 leaves this key out; real repositories have it and llama.cpp's converter reads it.
    path.write_text(json.dumps({**config, **saved, "added_tokens_decoder": decoder}, indent=1))
