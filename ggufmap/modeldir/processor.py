"""What the processor of a model with a vision tower reads beside config.json: its own files, and names of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ggufmap.modeldir.config import ModelConfig
from ggufmap.modeldir.given import read_optional

_SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def processor_files(config: ModelConfig) -> dict[str, str]:
    """The processor's files by name: those beside a given config.json, else what the header says."""
    found = {}
    for name, values in config.files.items():
        given = {} if config.folder is None else read_optional(config.folder / name)
        found[name] = json.dumps(given or dict(values), indent=1) + "\n"
    return found


def name_tokens(folder: Path, tokens: Mapping[str, str]) -> None:
    """Make `tokens` attributes of the tokenizer in `folder`; one that its vocabulary lacks becomes its next token."""
    if not tokens:
        return
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    added, vocabulary = tokenizer["added_tokens"], tokenizer["model"]["vocab"]
    known = {token["content"] for token in added}.union(vocabulary)
    size = 1 + max([token["id"] for token in added] + list(vocabulary.values()))
    missing = [text for text in tokens.values() if text not in known]
    if missing:
        added += [{"id": size + place, "content": text, **_SPECIAL} for place, text in enumerate(missing)]
        file.write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    values = json.loads(settings.read_text(encoding="utf-8"))
    values["extra_special_tokens"] = dict(tokens)
    settings.write_text(json.dumps(values, indent=1) + "\n", encoding="ascii")
