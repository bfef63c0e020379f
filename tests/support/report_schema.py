"""The JSON report's schema 1, written down independently of the code (DESIGN.md); additions are allowed."""

from __future__ import annotations

from typing import Any

import jsonschema

_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_COUNT = {"type": ["integer", "null"], "minimum": 0}
_MAYBE_TEXT = {"type": ["string", "null"]}


def _object(**properties: Any) -> dict[str, Any]:
    """An object that has all of these."""
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_STORAGE_GROUP = _object(
    role={"enum": ["target", "draft"]},
    layer=_TEXT,
    tensors={**_list(_TEXT), "minItems": 1},
    types={**_list(_TEXT), "minItems": 1},
    storage={"enum": ["packed", "dense"]},
    reason={"type": "string"},
    bytes_per_rank=_COUNT,
    dense_bytes_per_rank=_COUNT,
)
_STORAGE = _object(asked={"enum": ["auto", "packed", "dense"]}, note={"type": "string"}, groups=_list(_STORAGE_GROUP))
_PARAMETER = _object(name=_TEXT, shard={"type": ["string", "integer", "null"]}, experts={"type": ["integer", "null"]})

ASSIGNMENT = _object(
    tensor=_TEXT,
    inferred={"type": "boolean"},
    ggml_type=_TEXT,
    shape=_list(_COUNT),
    role={"enum": ["target", "draft", "skipped"]},
    transform=_MAYBE_TEXT,
    storage={"enum": ["packed", "dense", None]},
    checkpoint=_list(_TEXT),
    parameters=_list(_PARAMETER),
    reason=_MAYBE_TEXT,
)

REPORT = _object(
    schema={"const": 1},
    ok={"type": "boolean"},
    model=_object(
        path=_TEXT,
        architecture=_TEXT,
        name=_TEXT,
        splits={"type": "integer", "minimum": 1},
        bytes=_COUNT,
        tensors=_COUNT,
        blocks={"type": "integer", "minimum": 1},
        draft_blocks=_COUNT,
        mmproj=_MAYBE_TEXT,
    ),
    target=_object(
        vllm=_MAYBE_TEXT,
        device=_MAYBE_TEXT,
        tensor_parallel={"type": "integer", "minimum": 1},
        model_class=_TEXT,
        draft_class=_MAYBE_TEXT,
        traced={"type": "boolean"},
    ),
    summary=_object(
        tensors=_COUNT,
        mapped=_COUNT,
        draft=_COUNT,
        skipped=_COUNT,
        unmapped=_COUNT,
        missing=_COUNT,
        phantom=_COUNT,
        mismatched=_COUNT,
        parameters=_MAYBE_COUNT,
        parameters_complete=_MAYBE_COUNT,
    ),
    assignments=_list(ASSIGNMENT),
    unmapped=_list(_object(tensor=_TEXT, reason=_TEXT)),
    missing=_list(_object(parameter=_TEXT, role={"enum": ["target", "draft"]}, reason=_TEXT)),
    phantom=_list(_object(tensor=_TEXT, checkpoint=_list(_TEXT), reason=_TEXT)),
    mismatched=_list(_object(tensor=_TEXT, reason=_TEXT)),
    templates=_list(
        _object(
            key=_TEXT,
            sha256={"type": "string", "pattern": "^([0-9a-f]{64})?$"},
            bytes=_COUNT,
            findings=_list(_object(kind=_TEXT, line=_COUNT, text=_TEXT, refused={"type": "boolean"})),
        )
    ),
    warnings=_list(_object(code={"type": "string", "pattern": r"^W\d{3}$"}, message=_TEXT)),
    inferred={"anyOf": [{"type": "null"}, _object(basis=_TEXT, rows=_TEXT)]},
    stock={
        "anyOf": [{"type": "null"}, _object(entries=_COUNT, unmapped=_list(_TEXT), phantom=_list(_TEXT))],
    },
    storage={"anyOf": [{"type": "null"}, _STORAGE]},
)


def check_report(report: Any) -> None:
    """Raise when `report` is not of schema 1, or when its parts contradict each other."""
    jsonschema.Draft202012Validator.check_schema(REPORT)
    jsonschema.validate(report, REPORT)
    counts = report["summary"]
    for kind in ("unmapped", "missing", "phantom", "mismatched"):
        assert counts[kind] == len(report[kind]), kind
    inferred = report["inferred"] is not None
    assert report["ok"] is not (inferred or any(counts[kind] for kind in ("unmapped", "missing", "mismatched")))
    assert all(entry["inferred"] is inferred for entry in report["assignments"])
    assert counts["tensors"] == report["model"]["tensors"]
    bad = {x["tensor"] for kind in ("unmapped", "mismatched") for x in report[kind]}
    groups = [] if report["storage"] is None else report["storage"]["groups"]
    held = {(x["role"], name) for x in groups if x["storage"] == "packed" for name in x["tensors"]}
    assert held == {(x["role"], x["tensor"]) for x in report["assignments"] if x["storage"] == "packed"}
    # A dense layer says why.
    assert all(bool(x["reason"]) is (x["storage"] == "dense") for x in groups)
    # Every tensor is in exactly one class.
    assert counts["mapped"] + counts["draft"] + counts["skipped"] + len(bad) == counts["tensors"]
    assert (counts["parameters"] is None) is not report["target"]["traced"]
