"""The config of a model with a vision tower, and the files that its processor reads, from the projector's header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ggufmap.archs.base import ConfigRow, JsonValue, Vision
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.rows import evaluate

_WHOLE = ("architectures", "model_type", "dtype", "tie_word_embeddings")
_PART = "vision_config"


@dataclass(frozen=True, slots=True)
class Whole:
    """config.json of the whole model, the processor's files by name, and what of both no header says."""

    values: Mapping[str, JsonValue]
    files: Mapping[str, Mapping[str, JsonValue]]
    assumed: Mapping[str, JsonValue]


def with_vision(text: Mapping[str, JsonValue], vision: Vision, blocks: Layout, given: Mapping[str, JsonValue]) -> Whole:
    """`text`, the text model's keys, as the `text_config` of the whole model's config.

    `given` is a whole model's config.json, or empty: its `vision_config`, and its keys beside that, win.
    Raises MetadataError or FileError when the projector's header lacks what a row needs.
    """
    assumed: dict[str, JsonValue] = {}

    def said(rows: tuple[ConfigRow, ...], place: str, theirs: JsonValue = None) -> dict[str, JsonValue]:
        assert blocks.checkpoint.projector is not None
        values: dict[str, JsonValue] = {}
        for row in rows:
            if isinstance(theirs, dict) and row.key in theirs:
                values[row.key] = theirs[row.key]
                continue
            values[row.key], guessed = evaluate(row, blocks, blocks.checkpoint.projector, "clip")
            if guessed:
                assumed[f"{place}{row.key}"] = values[row.key]
        return values

    part = {key: value for key, value in text.items() if key != "architectures"}
    theirs = given.get(_PART)
    tower = {**said(vision.config, f"{_PART}.", theirs), **(theirs if isinstance(theirs, dict) else {})}
    values = {
        **{key: text[key] for key in _WHOLE},
        **said(vision.outer, "", dict(given)),
        "text_config": {**part, "model_type": vision.text_model_type},
        _PART: tower,
    }
    files = {name: said(rows, f"{name.removesuffix('.json')}.") for name, rows in vision.files}
    return Whole(values, files, assumed)
