"""A Hugging Face tokenizer out of a GGUF header that gives the token ids that llama.cpp gives.

Only facts are turned into `tokenizer.json`; the tokenizing itself is the `tokenizers` library's. Behaviour
follows llama.cpp at 0c1e57098 with special tokens parsed (`src/llama-vocab.cpp`).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass

import numpy as np

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import UnsupportedError
from ggufmap.modeldir.pretokenizers import PreTokenizer
from ggufmap.modeldir.stop_tokens import MODEL
from ggufmap.modeldir.tokenizer_bpe import bpe_model, byte_level_decoder, choose_pre_tokenizer, pre_tokenizer_spec
from ggufmap.modeldir.tokenizer_spm import SPACE, spm_model
from ggufmap.modeldir.tokenizer_vocab import SPECIAL_TYPES, Vocabulary, read_vocabulary

KNOWN_MODELS = ("llama", "gpt2", "gemma4")
"""Values of `tokenizer.ggml.model` that can be built."""

_CHAT_TEMPLATE = "tokenizer.chat_template"

# For the model types of these architectures transformers 5 ignores `tokenizer_class` and builds a Qwen tokenizer of
# its own (NFC, other patterns) from the vocabulary: MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS, 5.19.0. A reference to
# a module leads it past that, to `tokenizer_class`, without loading the module unless remote code is trusted.
_REBUILT = ("qwen2", "qwen2vl", "qwen35", "qwen35moe")
_MODULE = "tokenization_ggufmap"
_MODULE_TEXT = '''"""tokenizer.json as it is (see ggufmap, modeldir/tokenizer.py)."""

from transformers import PreTrainedTokenizerFast


class GgufTokenizer(PreTrainedTokenizerFast):
    """A name of its own, so that transformers does not put a tokenizer of the model type in its place."""
'''

_PHI3_KEEPS_BLANKS = ("<unk>", "<s>", "<|endoftext|>")

Spec = dict[str, object]


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What goes into a model directory: `tokenizer_json` as text, `config` for tokenizer_config.json.

    `chat_template` is the file's own, never rendered here. `modules` are Python files (name to text) that `config`
    refers to, mostly none. `warnings` are sentences for a person.
    """

    tokenizer_json: str
    config: dict[str, object]
    chat_template: str | None
    vocab_size: int
    modules: dict[str, str]
    warnings: tuple[str, ...]


def build_tokenizer(metadata: Metadata) -> TokenizerFiles:
    """Build the tokenizer files from the metadata of a header.

    Raises MetadataError for token lists that are missing, inconsistent or of the wrong type, and
    UnsupportedError for a tokenizer model, a pre-tokenizer or a scoring that is not known here.
    """
    model = metadata.string(MODEL)
    if model not in KNOWN_MODELS:
        raise _unknown_model(metadata, model)
    vocabulary = read_vocabulary(metadata)
    warnings = list(vocabulary.warnings)
    if model == "llama":
        pipeline = _spm_pipeline(metadata, vocabulary, warnings)
        add_bos = metadata.boolean("tokenizer.ggml.add_bos_token", True)
    else:
        pre = choose_pre_tokenizer(metadata, model, warnings)
        pipeline = _bpe_pipeline(metadata, vocabulary, pre, warnings)
        add_bos = metadata.boolean("tokenizer.ggml.add_bos_token", pre.add_bos) or pre.force_bos
    add_eos = metadata.boolean("tokenizer.ggml.add_eos_token", False)
    frame = _frame(vocabulary, add_bos, add_eos, warnings)
    added = _added_tokens(metadata, vocabulary)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        **pipeline,
        "post_processor": _post_processor(vocabulary, frame),
    }
    return TokenizerFiles(
        tokenizer_json=json.dumps(document, ensure_ascii=False, separators=(",", ":")),
        config=_config(metadata, vocabulary, added, frame, warnings),
        chat_template=metadata.string(_CHAT_TEMPLATE) if _CHAT_TEMPLATE in metadata else None,
        vocab_size=len(vocabulary.texts),
        modules={f"{_MODULE}.py": _MODULE_TEXT} if _is_rebuilt(metadata) else {},
        warnings=tuple(warnings),
    )


def _spm_pipeline(metadata: Metadata, vocabulary: Vocabulary, warnings: list[str]) -> Spec:
    prefix = metadata.boolean("tokenizer.ggml.add_space_prefix", True)
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, escape]} if prefix else escape,
        "pre_tokenizer": None,
        "decoder": _raw_decoder(strip=prefix),
        "model": spm_model(metadata, vocabulary, warnings),
    }


def _bpe_pipeline(metadata: Metadata, vocabulary: Vocabulary, pre: PreTokenizer, warnings: list[str]) -> Spec:
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return {
        "normalizer": None if pre.byte_level else escape,
        "pre_tokenizer": pre_tokenizer_spec(pre),
        "decoder": byte_level_decoder(vocabulary) if pre.byte_level else _raw_decoder(strip=False),
        "model": bpe_model(metadata, vocabulary, pre, warnings),
    }


def _raw_decoder(*, strip: bool) -> Spec:
    steps: list[Spec] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _added_tokens(metadata: Metadata, vocabulary: Vocabulary) -> list[Spec]:
    """The tokens that are cut out of the text as a whole, matched before any normalising."""
    left, right = _stripping(metadata)
    return [
        {
            "id": token,
            "content": (text := vocabulary.texts[token]),
            "single_word": False,
            "lstrip": text in left,
            "rstrip": right and text not in _PHI3_KEEPS_BLANKS,
            "normalized": False,
            "special": int(vocabulary.types[token]) in SPECIAL_TYPES,
        }
        for token in np.flatnonzero(vocabulary.cut_mask()).tolist()
    ]


def _stripping(metadata: Metadata) -> tuple[tuple[str, ...], bool]:
    """Texts that swallow the blanks on their left, and whether all do so on their right: by name, as llama.cpp."""
    pre = metadata.string("tokenizer.ggml.pre", "")
    name = metadata.string("general.name", "").lower()
    if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return ("<mask>",), False
    if "phi-3" in name or "phi3" in name:
        return (), True
    return ("[MASK]",) if "modern-bert" in name else (), False


def _frame(vocabulary: Vocabulary, add_bos: bool, add_eos: bool, warnings: list[str]) -> dict[str, int]:
    """The tokens put around a text: `bos` and `eos`, where wanted and known."""
    frame = {}
    for name, wanted in (("bos", add_bos), ("eos", add_eos)):
        if wanted and name in vocabulary.named:
            frame[name] = vocabulary.named[name]
        elif wanted:
            warnings.append(f"the tokenizer asks for a {name.upper()} token but names none; none is added")
    return frame


def _post_processor(vocabulary: Vocabulary, frame: dict[str, int]) -> Spec:
    texts = {name: vocabulary.texts[token] for name, token in frame.items()}

    def sequence(name: str, type_id: int) -> list[Spec]:
        steps: list[Spec] = [{"Sequence": {"id": name, "type_id": type_id}}]
        if "bos" in texts:
            steps.insert(0, {"SpecialToken": {"id": texts["bos"], "type_id": type_id}})
        if "eos" in texts:
            steps.append({"SpecialToken": {"id": texts["eos"], "type_id": type_id}})
        return steps

    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": sequence("A", 0) + sequence("B", 1),
        "special_tokens": {
            texts[name]: {"id": texts[name], "ids": [token], "tokens": [texts[name]]} for name, token in frame.items()
        },
    }


def _config(
    metadata: Metadata, vocabulary: Vocabulary, added: list[Spec], frame: dict[str, int], warnings: list[str]
) -> Spec:
    """tokenizer_config.json. A named token that is ordinary text stays out: transformers would cut it out."""
    config: Spec = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        # Without it transformers warns that every large BPE vocabulary has Mistral's wrong pattern.
        "fix_mistral_regex": False,
    }
    length = metadata.integer(f"{metadata.string('general.architecture', '')}.context_length", 0)
    if length > 0:
        config["model_max_length"] = length
    for name, token in vocabulary.named.items():
        if vocabulary.is_cut(token):
            config[f"{name}_token"] = vocabulary.texts[token]
        elif name != "unk":
            warnings.append(f"the {name.upper()} token {token} ({vocabulary.texts[token]!r}) is ordinary text")
    for name in ("bos", "eos"):
        if name not in frame or f"{name}_token" in config:
            config[f"add_{name}_token"] = name in frame
    if _is_rebuilt(metadata):
        config["auto_map"] = {"AutoTokenizer": [f"{_MODULE}.GgufTokenizer"] * 2}
    # With this key, even short, transformers does not read tokenizer.json a second time to collect them all.
    named = set(vocabulary.named.values())
    config["added_tokens_decoder"] = {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"}
        for token in added
        if token["id"] in named
    }
    return config


def _is_rebuilt(metadata: Metadata) -> bool:
    return metadata.string("general.architecture", "") in _REBUILT


def _unknown_model(metadata: Metadata, model: str) -> UnsupportedError:
    near = difflib.get_close_matches(model, KNOWN_MODELS, n=1)
    guess = f"; nearest known: {near[0]}" if near else ""
    return UnsupportedError(
        f"{metadata.file}: {MODEL} is {model!r}, a tokenizer that is not known here{guess}",
        hint=f"Pass a Hugging Face tokenizer with --tokenizer DIR. Known: {', '.join(KNOWN_MODELS)}",
    )
