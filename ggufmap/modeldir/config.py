"""`config.json` and `generation_config.json` for a GGUF file.

Precedence: `--hf-config DIR`, then a `config.json` beside the file, then the header. What a header cannot say comes
from the architecture's rows and is listed as assumed; where a given config contradicts the file, the report shows both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ggufmap.archs.base import Architecture, JsonValue, Source
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import GgufmapError
from ggufmap.mapping.layout import Layout, layout
from ggufmap.mapping.plan import Warned
from ggufmap.modeldir.given import Given, check_rope, modern_rope, read_given, same
from ggufmap.modeldir.rows import evaluate
from ggufmap.modeldir.vision import with_vision

# Keys where the file is the proof and a given config merely an opinion.
_FILE_WINS = (
    "tie_word_embeddings",
    "vocab_size",
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`values` is config.json. `assumed` are the keys that no file said; `source` is where the rest comes from.

    `files` are what the processor of a model with a vision tower reads, `tokens` the tokenizer attributes that it
    looks up.
    """

    values: Mapping[str, JsonValue]
    assumed: Mapping[str, JsonValue]
    source: str
    warnings: tuple[Warned, ...] = ()
    files: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """Where a given config.json lies; None for one made from the header."""
        return None if self.source == "header" else Path(self.source).parent

    @property
    def text(self) -> Mapping[str, JsonValue]:
        """The text model's keys: nested under `text_config` in some families."""
        nested = self.values.get("text_config")
        return nested if isinstance(nested, dict) else self.values


def build_config(checkpoint: Checkpoint, architecture: Architecture, hf_config: Path | None = None) -> ModelConfig:
    """The config for `checkpoint`, from `hf_config` (a folder or file), a sibling config.json, or the header.

    Raises UsageError when `hf_config` has no readable config.json, MetadataError or FileError for the header's faults.
    """
    file = _given_file(checkpoint, hf_config)
    if file is None:
        return config_from_header(checkpoint, architecture)
    blocks = layout(checkpoint, architecture)
    given = read_given(file)
    merged = _merge(checkpoint, _own(blocks, given.values), given)
    if given.whole and blocks.architecture.vision is None:
        warning = Warned("W101", f"{file}: is of a model with images; only the text part is used, images are off")
        merged = replace(merged, warnings=(warning, *merged.warnings))
    return _nested(merged, blocks, given.whole)


def config_from_header(checkpoint: Checkpoint, architecture: Architecture) -> ModelConfig:
    """config.json from the header and the architecture's rows alone."""
    blocks = layout(checkpoint, architecture)
    return _nested(_own(blocks), blocks)


def _given_file(checkpoint: Checkpoint, hf_config: Path | None) -> Path | None:
    if hf_config is not None:
        return hf_config / "config.json" if os.path.isdir(hf_config) else hf_config  # noqa: PTH112 - never raises
    if not isinstance(checkpoint.path, Path):  # what lies beside a remote file is not read: a download leaves it out
        return None
    sibling = checkpoint.path.parent / "config.json"
    return sibling if sibling.is_file() else None


def _own(blocks: Layout, given: Collection[str] = ()) -> ModelConfig:
    """What header and rows say. A key that the header fails to say may be left to a `given` config that has it."""
    checkpoint, architecture = blocks.checkpoint, blocks.architecture
    values: dict[str, JsonValue] = {
        "architectures": [blocks.model_class],
        "model_type": blocks.model_type,
        "dtype": "bfloat16",
    }
    assumed: dict[str, JsonValue] = {"dtype": "bfloat16"}
    for row in (*architecture.config, *(architecture.draft_flags if blocks.draft else ())):
        try:
            value, guessed = evaluate(row, blocks, checkpoint.metadata, checkpoint.architecture)
        except GgufmapError:
            if not _said(row.key, given):
                raise
            continue
        if value is None and row.source is not Source.ASSUMED and not row.nullable:
            continue
        values[row.key] = value
        if guessed:
            assumed[row.key] = value
    return ModelConfig(values, assumed, "header")


def _said(key: str, given: Collection[str]) -> bool:
    return key not in _FILE_WINS and (key in given or (key == "rope_parameters" and "rope_scaling" in given))


def _nested(config: ModelConfig, blocks: Layout, given: Mapping[str, JsonValue] | None = None) -> ModelConfig:
    """With the text model's keys under `text_config`, for config classes that look for them there.

    `given` is the whole of a given config of a model with a vision tower.
    """
    vision, text_model_type = blocks.architecture.vision, blocks.architecture.text_model_type
    if vision is not None:
        whole = with_vision(config.values, vision, blocks, given or {})
        assumed = {**config.assumed, **whole.assumed}
        return replace(config, values=whole.values, assumed=assumed, files=whole.files, tokens=dict(vision.tokens))
    if text_model_type is None:
        return config
    outer = {key: config.values[key] for key in ("architectures", "model_type", "dtype", "tie_word_embeddings")}
    return replace(config, values={**outer, "text_config": {**config.values, "model_type": text_model_type}})


def generation_config(stop_ids: tuple[int, ...], checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """generation_config.json: every id that ends an answer, and BOS when the file names it. No sampling defaults."""
    config: dict[str, JsonValue] = {"eos_token_id": list(stop_ids)} if stop_ids else {}
    if "tokenizer.ggml.bos_token_id" in checkpoint.metadata:
        config["bos_token_id"] = checkpoint.metadata.integer("tokenizer.ggml.bos_token_id")
    return config


def _merge(checkpoint: Checkpoint, own: ModelConfig, given: Given) -> ModelConfig:
    """The given config, checked against the file's own; keys it lacks come from the header."""
    warnings = list(given.warnings)
    values = modern_rope(given.values, own.values.get("rope_parameters"))
    merged = {**own.values, **values}
    check_rope(checkpoint, merged, given.file)
    for key, mine in own.values.items():
        theirs = merged[key]
        if key in own.assumed or key == "model_type" or same(mine, theirs):
            continue
        if key in _FILE_WINS:
            merged[key] = mine
        winner = "the file's" if key in _FILE_WINS else "the config's"
        warnings.append(
            Warned("W103", f"{key}: {given.file} says {theirs!r}, the GGUF file {mine!r}; {winner} is used")
        )
    assumed = {key: value for key, value in own.assumed.items() if key not in values}
    return ModelConfig(merged, assumed, str(given.file), tuple(warnings))
