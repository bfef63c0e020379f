"""How llama.cpp cuts text into words before BPE, by `tokenizer.ggml.pre`: patterns, no code.

Facts from llama.cpp at 0c1e57098, `src/llama-vocab.cpp` (names, flags, expressions) and `src/unicode.cpp`
(the expressions that it runs as hand-written functions, which is where it differs from their text).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ggufmap.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One row: Oniguruma `patterns`, applied one after another; each isolates its matches in every piece.

    `ignore_merges`: a piece that is a token stays whole. `add_bos`: default when the file does not say.
    `byte_level` false: text stays UTF-8, with U+2581 for spaces and <0xXX> tokens for unknown characters.
    `force_bos`: BOS is added whatever the file says.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True
    force_bos: bool = False


_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_BLANKS}"

# llama.cpp has no upper and lower case outside ASCII: every other letter counts as both.
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
_UPPER_M, _LOWER_M = r"[[\p{L}\p{M}]&&[^a-z]]", r"[[\p{L}\p{M}]&&[^A-Z]]"


def _cased(upper: str, lower: str, tail: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return rf"{start}{upper}*{lower}+{tail}|{start}{upper}+{lower}*{tail}"


_PATH_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = rf"{_cased(_UPPER, _LOWER, _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_PATH_SYMBOLS}|{_BLANKS}"
_GRANITE = rf"{_cased(_UPPER_M, _LOWER_M, _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_PATH_SYMBOLS}|{_BLANKS}"
_TEKKEN = rf"{_cased(_UPPER, _LOWER, '')}|\p{{N}}|{_PATH_SYMBOLS}|{_BLANKS}"
_MARKED = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTION}?"

_ASCII_SYMBOL_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_DEEPSEEK3_WORD = rf"{_ASCII_SYMBOL_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
    rf"{_DEEPSEEK3_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
)

_DEEPSEEK_LETTERS = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}"
    r"\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
# llama.cpp turns every non-ASCII blank into U+000B first, so a range never matches one.
_DEEPSEEK_CJK = r"[[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]&&[^\s]]+"

_HAN = (
    r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}"
    r"\x{2F800}-\x{2FA1F}"
)
_KIMI = rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"

# Groups of three digits counted from the right. llama.cpp leaves the text before a run in the piece of its
# first group; the look-behind and the last branch keep long runs, and text without digits, linear.
_DIGITS_FROM_RIGHT = r"(?<=\p{N})\p{N}{3}|\P{N}*+\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))|\P{N}++"
# llama.cpp splits before each group of three ASCII digits from the right, `(?=(\d{3})+(?!\d))`, which costs the square
# of a run. The same pieces in one pass: what comes before a run goes with its one or two odd digits.
_ODD = r"[0-9]{1,2}(?=(?:[0-9]{3})++(?![0-9]))"
_BESIDE = r"(?:[^0-9]++|[0-9]{1,2}(?![0-9]))"
_SUPERBPE = rf"(?<![0-9])(?:{_BESIDE}++(?:{_ODD})?|{_ODD})|[0-9]{{3}}(?:(?=[0-9])|{_BESIDE}*+(?:{_ODD})?)"

_AFMOE_SCRIPTS = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{E40}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}"
    r"\x{1100}-\x{11FF}]+"
)
_YOUTU_SCRIPTS = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}"
    r"\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+"
    r"|[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
)

_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2_BLANKS = "|".join(rf"\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
_LINES = r"[^\n]+|[\n]+"

_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN_QWEN2 = PreTokenizer((_QWEN2,))
_PLAIN_LLAMA3 = PreTokenizer((_LLAMA3,))
_WHOLE_LLAMA3 = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_PLAIN_GPT4O = PreTokenizer((_GPT4O,))
_PLAIN_DEEPSEEK3 = PreTokenizer(_DEEPSEEK3)
_PLAIN_BLOOM = PreTokenizer((_BLOOM,))
_BAILING = PreTokenizer(
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        rf"|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_AYA = PreTokenizer((_DIGITS_FROM_RIGHT, rf"{_MARKED}|\p{{N}}{{1,3}}|{_PATH_SYMBOLS}|{_BLANKS}"))
_GEMMA4 = PreTokenizer((_LINES,), byte_level=False, force_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum"),
        _PLAIN_GPT2,
    ),
    **dict.fromkeys(
        ("modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "trillion"),
        _PLAIN_GPT2,
    ),
    **dict.fromkeys(("granite-docling", "exaone4"), _PLAIN_GPT2),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"),
        _DIGITS_GPT2,
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _WHOLE_LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _PLAIN_LLAMA3),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_BLANKS}"), ignore_merges=True
    ),
    "jais-2": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+|{_JAIS2_BLANKS}|\s",)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _PLAIN_QWEN2),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), _PLAIN_QWEN2),
    "qwen35": PreTokenizer(
        (
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
        )
    ),
    "ufakzeka": PreTokenizer((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_BLANKS}",)),
    "seed-coder": PreTokenizer((rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _PLAIN_GPT4O),
    "granite-embed-multi-97m": PreTokenizer((_GRANITE,), ignore_merges=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _AYA),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, rf"{_MARKED}|\p{{N}}|{_PATH_SYMBOLS}|{_BLANKS}"), ignore_merges=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]+",
            r"(?<!\s)\s++\z",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"), _PLAIN_DEEPSEEK3),
    "spark2_5": PreTokenizer(
        (*_DEEPSEEK3[:2], rf"{_DEEPSEEK3_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
    ),
    "afmoe": PreTokenizer((_DIGITS_FROM_RIGHT, _AFMOE_SCRIPTS, _DEEPSEEK3[2])),
    "kimi-k2": PreTokenizer((_KIMI,)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _PLAIN_BLOOM),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+", _SUPERBPE)),
    "chameleon": PreTokenizer(
        (
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _GEMMA4),
    "sarvam-moe": PreTokenizer((_LINES,), byte_level=False),
}
"""Every `tokenizer.ggml.pre` of llama.cpp but `whitespace`, which drops text."""

# What Unicode 16 added to letters, marks, digits, punctuation and symbols (gaps are unassigned): llama.cpp
# classifies by Unicode 15.1, where these are nothing, and `tokenizers` 0.22 and 0.23 by Unicode 16.
_SINCE_UNICODE_16 = (
    r"\x{897}\x{1B4E}-\x{1B4F}\x{1B7F}\x{1C89}-\x{1C8A}\x{2427}-\x{2429}\x{31E4}-\x{31E5}\x{A7CB}-\x{A7CD}"
    r"\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D40}-\x{10D8F}\x{10EC2}-\x{10EFC}\x{11380}-\x{113E2}"
    r"\x{116D0}-\x{116E3}\x{11BC0}-\x{11BF9}\x{11F5A}\x{13460}-\x{143FA}\x{16100}-\x{16139}\x{16D40}-\x{16D79}"
    r"\x{18CFF}\x{1CC00}-\x{1CEB3}\x{1E5D0}-\x{1E5FF}\x{1F8B2}-\x{1F8C1}\x{1FA89}-\x{1FA8F}\x{1FABE}\x{1FAC6}"
    r"\x{1FADC}-\x{1FADF}\x{1FAE9}\x{1FBCB}-\x{1FBEF}"
)
_CATEGORY = re.compile(r"\\([pP])(\{[LMNPS]\})")


def exact_pattern(pattern: str) -> str:
    """`pattern` with each Unicode category narrowed to the code points that llama.cpp counts in it."""

    def narrowed(match: re.Match[str]) -> str:
        if match[1] == "P":
            return rf"[\P{match[2]}{_SINCE_UNICODE_16}]"
        return rf"[\p{match[2]}&&[^{_SINCE_UNICODE_16}]]"

    return _CATEGORY.sub(narrowed, pattern)


def find_pre_tokenizer(name: str, file: str) -> PreTokenizer:
    """The row of a `tokenizer.ggml.pre`. Raises UnsupportedError, naming `file`, the nearest spelling and all known."""
    row = PRE_TOKENIZERS.get(name)
    if row is not None:
        return row
    near = difflib.get_close_matches(name, PRE_TOKENIZERS, n=1)
    guess = f"; nearest known: {near[0]}" if near else ""
    raise UnsupportedError(
        f"{file}: tokenizer.ggml.pre is {name!r}, a pre-tokenizer that is not known here{guess}",
        hint=f"Pass a Hugging Face tokenizer with --tokenizer DIR. Known: {', '.join(sorted(PRE_TOKENIZERS))}",
    )
