"""`config.json` and `generation_config.json` for a GGUF file.

Precedence: `--hf-config DIR`, then a `config.json` beside the file, then the header. What a header cannot say comes
from the architecture's rows and is listed as assumed; where a given config contradicts the file, the report shows both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ggufmap.archs.base import Architecture, ConfigRow, JsonValue, Source
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError, UsageError
from ggufmap.mapping.layout import Layout, layout
from ggufmap.mapping.plan import Warned
from ggufmap.modeldir.derive import DERIVED
from ggufmap.modeldir.rope import matches_llama3, rope_factors

_MAX_CONFIG_BYTES = 16 << 20
# Keys where the file is the proof and a given config merely an opinion.
_FILE_WINS = ("tie_word_embeddings", "vocab_size")
# A dense load has no quantisation, and code of the original repository is not here (never run because of a file).
_DROPPED = ("quantization_config", "auto_map")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`values` is config.json. `assumed` are the keys that no file said; `source` is where the rest comes from."""

    values: Mapping[str, JsonValue]
    assumed: Mapping[str, JsonValue]
    source: str
    warnings: tuple[Warned, ...] = ()

    @property
    def text(self) -> Mapping[str, JsonValue]:
        """The text model's keys: nested under `text_config` in some families."""
        nested = self.values.get("text_config")
        return nested if isinstance(nested, dict) else self.values


def build_config(checkpoint: Checkpoint, architecture: Architecture, hf_config: Path | None = None) -> ModelConfig:
    """The config for `checkpoint`, from `hf_config` (a folder or file), a sibling config.json, or the header.

    Raises UsageError when `hf_config` has no readable config.json, MetadataError or FileError for the header's faults.
    """
    own = config_from_header(checkpoint, architecture)
    if hf_config is not None:
        return _merge(checkpoint, own, _read(hf_config / "config.json" if hf_config.is_dir() else hf_config))
    sibling = checkpoint.path.parent / "config.json"
    if sibling.is_file():
        return _merge(checkpoint, own, _read(sibling))
    return own


def config_from_header(checkpoint: Checkpoint, architecture: Architecture) -> ModelConfig:
    """config.json from the header and the architecture's rows alone."""
    blocks = layout(checkpoint, architecture)
    values: dict[str, JsonValue] = {
        "architectures": [blocks.model_class],
        "model_type": blocks.model_type,
        "dtype": "bfloat16",
    }
    assumed: dict[str, JsonValue] = {"dtype": "bfloat16"}
    for row in (*architecture.config, *(architecture.draft_flags if blocks.draft else ())):
        value, guessed = _evaluate(row, blocks)
        if value is None and row.source is not Source.ASSUMED and not row.nullable:
            continue
        values[row.key] = value
        if guessed:
            assumed[row.key] = value
    return ModelConfig(_nested(values, architecture), assumed, "header")


def _nested(values: dict[str, JsonValue], architecture: Architecture) -> dict[str, JsonValue]:
    """With the text model's keys under `text_config`, for config classes that look for them there."""
    if architecture.text_model_type is None:
        return values
    outer = {key: values[key] for key in ("architectures", "model_type", "dtype", "tie_word_embeddings")}
    return {**outer, "text_config": {**values, "model_type": architecture.text_model_type}}


def generation_config(stop_ids: tuple[int, ...], checkpoint: Checkpoint) -> dict[str, JsonValue]:
    """generation_config.json: every id that ends an answer, and BOS when the file names it. No sampling defaults."""
    config: dict[str, JsonValue] = {"eos_token_id": list(stop_ids)} if stop_ids else {}
    if "tokenizer.ggml.bos_token_id" in checkpoint.metadata:
        config["bos_token_id"] = checkpoint.metadata.integer("tokenizer.ggml.bos_token_id")
    return config


def _evaluate(row: ConfigRow, blocks: Layout) -> tuple[JsonValue, bool]:
    """The row's value and whether it is assumed."""
    if row.source is Source.ASSUMED:
        return row.value, True
    if row.source is Source.DERIVED:
        return DERIVED[str(row.value)](blocks), row.guess
    checkpoint = blocks.checkpoint
    key = f"{checkpoint.architecture}.{row.value}"
    if key not in checkpoint.metadata:
        if row.fallback is None and not (row.optional or row.nullable):
            checkpoint.metadata.number(key)  # raises, naming the key
        return row.fallback, row.fallback is not None
    number = checkpoint.metadata.number(key)
    return (int(number) if _is_integer(checkpoint, key) else number), False


def _is_integer(checkpoint: Checkpoint, key: str) -> bool:
    return not checkpoint.metadata[key].type.name.startswith("F")


def _read(file: Path) -> tuple[Path, dict[str, JsonValue]]:
    try:
        if file.stat().st_size > _MAX_CONFIG_BYTES:
            raise UsageError(f"{file}: larger than {_MAX_CONFIG_BYTES} bytes")
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"{file}: cannot be read: {e.strerror}", hint="Give a folder with a config.json.") from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{file}: not valid JSON: {e}") from e
    if not isinstance(values, dict):
        raise UsageError(f"{file}: a JSON object is expected, found {type(values).__name__}")
    return file, values


def _merge(checkpoint: Checkpoint, own: ModelConfig, given: tuple[Path, dict[str, JsonValue]]) -> ModelConfig:
    """The given config, checked against the file's own; keys it lacks come from the header."""
    file, values = given
    warnings: list[Warned] = []
    text = values.get("text_config")
    if isinstance(text, dict):
        warnings.append(Warned("W101", f"{file}: has a text_config; only the text part is used, images are off"))
        values = {
            **text,
            "architectures": own.values["architectures"],
            "model_type": own.values["model_type"],
        }
    for key in _DROPPED:
        if key in values:
            values = {k: v for k, v in values.items() if k != key}
            warnings.append(Warned("W102", f"{file}: {key} is left out (weights come from the GGUF file)"))
    merged = {**own.values, **values}
    for key, mine in own.values.items():
        theirs = merged[key]
        if key in own.assumed or key in ("architectures", "model_type") or _same(mine, theirs):
            continue
        if key in _FILE_WINS:
            merged[key] = mine
        winner = "the file's" if key in _FILE_WINS else "the config's"
        warnings.append(Warned("W103", f"{key}: {file} says {theirs!r}, the GGUF file {mine!r}; {winner} is used"))
    assumed = {key: value for key, value in own.assumed.items() if key not in values}
    _check_rope(checkpoint, merged, file)
    return ModelConfig(merged, assumed, str(file), tuple(warnings))


def _same(mine: JsonValue, theirs: JsonValue) -> bool:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return all(_same(value, theirs.get(key)) for key, value in mine.items())
    if isinstance(mine, float) and isinstance(theirs, (int, float)):
        return abs(mine - theirs) <= 1e-6 * max(abs(mine), abs(theirs))
    if isinstance(theirs, list) and not isinstance(mine, list):
        return mine in theirs  # eos_token_id may be a list
    return mine == theirs


def _check_rope(checkpoint: Checkpoint, values: Mapping[str, JsonValue], file: Path) -> None:
    """The config's Llama 3 scaling must give the factors that the file stores in `rope_freqs.weight`."""
    if "rope_freqs.weight" not in checkpoint.tensors:
        return
    rope = values.get("rope_parameters") or values.get("rope_scaling")
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    scaling = {name: float(str(rope[name])) for name in names if name in rope} if isinstance(rope, dict) else {}
    theta = rope.get("rope_theta", values.get("rope_theta", 10_000.0)) if isinstance(rope, dict) else 10_000.0
    if len(scaling) < len(names) or not matches_llama3(rope_factors(checkpoint), float(str(theta)), scaling):
        raise FileError(
            f"{file}: its RoPE scaling {rope!r} does not give the factors of rope_freqs.weight in {checkpoint.path}",
            hint="The config belongs to another model; leave it out, or give the right one with --hf-config DIR.",
        )
