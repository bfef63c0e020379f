"""What to do about what an audit finds: one table, by kind and by the words of the reason."""

from __future__ import annotations

import re

_CONVERT = "convert the original again with a current llama.cpp"
_ROWS = "docs/adding-an-architecture.md says how to add rows"
_CONFIG = "Give the original's config.json with --hf-config DIR, so that the class is built as the file was made"

_PROBLEMS: tuple[tuple[str, str, str], ...] = (
    (
        "unmapped",
        r"block \d+ is beyond",
        "The header's block_count is too small for the tensors: download the file again, or "
        f"{_CONVERT}. If these are draft blocks, nextn_predict_layers should say so.",
    ),
    (
        "unmapped",
        r"is not of a kind that has",
        "The family's rows say that this block has no such tensor. If llama.cpp runs the file, the rows lack a kind of "
        f"block ({_ROWS}); else {_CONVERT}.",
    ),
    (
        "unmapped",
        r"a mixture-of-experts tensor",
        f"The rows of this family are for dense models: take a file of the dense model, or add rows ({_ROWS}).",
    ),
    (
        "unmapped",
        r"no row for",
        "The rows of this family do not know the name. A nearest name hints at a renamed tensor: "
        f"{_CONVERT}. If the name is new in llama.cpp, update ggufmap, or add a row ({_ROWS}).",
    ),
    (
        "unmapped",
        r"takes nothing from",
        f"This vLLM's class has no use for it. {_CONFIG}; if the part is newer than this vLLM, update vLLM.",
    ),
    (
        "missing",
        r" is in the file, .* (is|are) not$",
        f"Half of what belongs together is there: download all splits again, or {_CONVERT}.",
    ),
    (
        "missing",
        r"not in the file$",
        f"The download is incomplete or the file was made for another use: download all splits again, or {_CONVERT}.",
    ),
    (
        "missing",
        r"elements are not written",
        f"vLLM's class has a parameter that no tensor fills. {_CONFIG}; --storage dense rules packed layers out.",
    ),
    (
        "mismatched",
        r"^ggml type",
        "Re-quantise with a current llama.cpp (llama-quantize) to a type that is read, or take another file of it.",
    ),
    ("mismatched", r"holds no values", f"A broken or cut conversion: {_CONVERT}."),
    (
        "mismatched",
        r"^shape ",
        f"The tensor's shape contradicts the header (heads, experts, sizes): {_CONVERT}, or compare the header's keys.",
    ),
    ("mismatched", r"is also made of", f"Two tensors claim the same destination; only one can be right: {_CONVERT}."),
    (
        "mismatched",
        r"is routed to the",
        "Header and tensors disagree on which blocks are the draft: compare block_count and nextn_predict_layers, or "
        "give a separate draft with --draft FILE.",
    ),
    ("mismatched", r"", f"vLLM's weight loader refuses it: its config says another size. {_CONFIG}."),
    (
        "inferred",
        r"",
        "Prove the rows with a round trip and add them to ggufmap (docs/adding-an-architecture.md); "
        "`ggufmap serve --force` serves the file unproven.",
    ),
    ("", r"", "Run `ggufmap audit --json` for the details and compare the file with its source."),
)

_WARNINGS = {
    "W101": "Give the vision tower with --mmproj FILE to serve images.",
    "W102": "Nothing to do: the weights' format is the file's.",
    "W103": "Check which of the two is right; leave --hf-config out to go by the header.",
    "W104": "Nothing to do for a file that loads elsewhere; a careless editor leaves such gaps.",
    "W105": "Install vLLM (pip install 'ggufmap[cpu]' or [gpu]) for the proof by its own classes.",
    "W106": "Check that all draft blocks were converted; those in the file are used.",
    "W107": "To have a draft, take a file that holds the nextn blocks, or give one with --draft FILE.",
    "W113": "Nothing to do: `ggufmap serve` passes the value itself.",
    "W114": "Update vLLM to serve with speculative decoding; without it the target is served alone.",
    "W121": "Name the right projector with --mmproj FILE.",
    "W122": "Images need rows for this projector (docs/adding-an-architecture.md); text is served.",
}


def remedy(kind: str, reason: str) -> str:
    """What to do about a problem of `kind` (unmapped, missing, mismatched, inferred) with this reason."""
    return next(
        text for wanted, pattern, text in _PROBLEMS if wanted in (kind, "") and re.search(pattern, reason) is not None
    )


def warning_remedy(code: str) -> str:
    """What to do about the warning with this code; empty for one that is not in the table."""
    return _WARNINGS.get(code, "")
