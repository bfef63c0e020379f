"""A config.json that is given (`--hf-config`, or beside the file): read, reduced to the text model, RoPE in one form.

Real ones spell RoPE in two ways: `rope_parameters`, and before transformers 5 `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError, UsageError
from ggufmap.mapping.plan import Warned
from ggufmap.modeldir.rope import matches_llama3, rope_factors

_MAX_BYTES = 16 << 20
_WANTED = "A config.json is that of the original model; without one, the header of the GGUF file is used."
# A dense load has no quantisation, and code of the original repository is not here (never run because of a file).
_DROPPED = ("quantization_config", "auto_map")
# Keys that belong to the whole model where the text model's are nested.
_OUTER = ("architectures", "model_type")
_VISION = "vision_config"
_OLD_ROPE = ("rope_theta", "rope_scaling", "rope_local_base_freq")
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True, slots=True)
class Given:
    """The text model's keys of the config.json `file`; `whole` is all of it where the model has more than text."""

    file: Path
    values: Mapping[str, JsonValue]
    warnings: tuple[Warned, ...]
    whole: Mapping[str, JsonValue] = field(default_factory=dict)


def read_given(file: Path) -> Given:
    """Read and reduce `file`. Raises UsageError when it cannot be read or holds no JSON object."""
    values = _read(file)
    warnings: list[Warned] = []
    text, whole = values.get("text_config"), {}
    if not isinstance(text, dict) and isinstance(values.get(_VISION), dict):
        text = {key: value for key, value in values.items() if key != _VISION}  # Qwen2.5-VL's is flat
    if isinstance(text, dict):
        whole, values = values, {key: value for key, value in text.items() if key not in _OUTER}
    for key in _DROPPED:
        if key in values:
            values = {k: v for k, v in values.items() if k != key}
            warnings.append(Warned("W102", f"{file}: {key} is left out (weights come from the GGUF file)"))
    return Given(file, values, tuple(warnings), whole)


def _read(file: Path) -> dict[str, JsonValue]:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{file}: larger than {_MAX_BYTES} bytes", hint=_WANTED)
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"{file}: cannot be read: {e.strerror}", hint=_WANTED) from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{file}: not valid JSON: {e}", hint=_WANTED) from e
    if not isinstance(values, dict):
        raise UsageError(f"{file}: a JSON object is expected, found {type(values).__name__}", hint=_WANTED)
    return values


def read_optional(file: Path) -> dict[str, JsonValue]:
    """The JSON object in `file`; empty when there is no such file. Raises UsageError when it is broken."""
    return _read(file) if file.is_file() else {}


def listed_ids(value: JsonValue) -> list[int]:
    """The token ids of a key that may hold one, several or none."""
    ids = value if isinstance(value, list) else [value]
    return [id for id in ids if isinstance(id, int) and not isinstance(id, bool)]


def modern_rope(values: Mapping[str, JsonValue], own: JsonValue) -> dict[str, JsonValue]:
    """`values` with all it says of RoPE in `rope_parameters`; what it does not say is as in `own`, the file's."""
    found = dict(values)
    if not isinstance(own, dict) or not any(found.get(key) is not None for key in ("rope_parameters", *_OLD_ROPE)):
        return found
    old = {key: found.pop(key, None) for key in _OLD_ROPE}
    given = found.get("rope_parameters")
    scaling = given if isinstance(given, dict) else old["rope_scaling"]
    scaling = dict(scaling) if isinstance(scaling, dict) else {}
    if "type" in scaling:  # before `rope_type`
        scaling.setdefault("rope_type", scaling.pop("type"))
    full, sliding = own.get("full_attention"), own.get("sliding_attention")
    if not isinstance(full, dict) or not isinstance(sliding, dict):
        found["rope_parameters"] = _completed(scaling, old["rope_theta"], own)
        return found
    parts = scaling if "full_attention" in scaling or "sliding_attention" in scaling else {"full_attention": scaling}
    found["rope_parameters"] = {
        "full_attention": _completed(parts.get("full_attention"), old["rope_theta"], full),
        "sliding_attention": _completed(parts.get("sliding_attention"), old["rope_local_base_freq"], sliding),
    }
    return found


def _completed(given: JsonValue, theta: JsonValue, own: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    base = own["rope_theta"] if theta is None else theta
    return {"rope_type": "default", "rope_theta": base, **(given if isinstance(given, dict) else {})}


def same(mine: JsonValue, theirs: JsonValue) -> bool:
    """Whether a given value says what the file says."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return all(same(value, theirs.get(key)) for key, value in mine.items())
    if isinstance(mine, float) and _is_number(theirs):
        return abs(mine - theirs) <= 1e-6 * max(abs(mine), abs(theirs))
    if isinstance(theirs, list) and not isinstance(mine, list):
        return mine in theirs  # eos_token_id may be a list
    return mine == theirs


def _is_number(value: JsonValue) -> TypeGuard[int | float]:
    # JSON has integers beyond any float.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def check_rope(checkpoint: Checkpoint, values: Mapping[str, JsonValue], file: Path) -> None:
    """The config's Llama 3 scaling must give the factors that the file stores in `rope_freqs.weight`.

    Raises FileError when it does not.
    """
    if "rope_freqs.weight" not in checkpoint.tensors:
        return
    rope = values.get("rope_parameters")
    found = {name: float(x) for name, x in (rope.items() if isinstance(rope, dict) else ()) if _is_number(x)}
    theta = max(found.get("rope_theta", 10_000.0), 1.0)
    if not all(name in found for name in _LLAMA3) or not matches_llama3(rope_factors(checkpoint), theta, found):
        raise FileError(
            f"{file}: its RoPE scaling {rope!r} does not give the factors of rope_freqs.weight in {checkpoint.path}",
            hint="The config belongs to another model; leave it out, or give the right one with --hf-config DIR.",
        )
