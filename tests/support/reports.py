"""JSON reports to make pages of: of files, and of what no file would hold."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ggufmap.modeldir.template import read_templates
from ggufmap.report.as_json import plan_report
from ggufmap.serving.preflight import preflight
from support.synthetic import generator

Report = dict[str, Any]

HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 2</script>",
    "<!--<script>",
    '"><img src="x:1" onerror="window.hacked = 3">',
    "' onmouseover='window.hacked = 4",
    "{{DATA}} {{SCRIPT}} ${window.hacked = 5} `x`",
    "javascript:window.hacked=6",
    "\u202egpj.evil\u202c \u2066x\u2069",
    "nul\x00bell\x07esc\x1b[31m\x7f\x9b",
    "line\nbreak\ttab\u2028sep\u2029sep",
    "\udcff lone \ud800",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629.weight",
    "blk.1." + "very_long_" * 400 + "weight",
    "blk.0.<b>bold</b>.weight",
    "__proto__",
    "constructor",
)


def offline_report(path: Path) -> Report:
    """What `ggufmap audit PATH --offline --json` prints, as a dict."""
    found = preflight(path, offline=True, infer_unknown=True)
    with found.checkpoint:
        return plan_report(
            found.plan,
            config_source=found.config.source,
            assumed=found.config.assumed,
            templates=[template.report() for template in read_templates(found.checkpoint.metadata)],
            header=found.checkpoint.metadata.listed(),
        )


def glm_5_report(folder: Path) -> Report:
    """GLM-5 in ten splits: 1809 tensors, 59,870 checkpoint tensors."""
    synthesize = generator()
    return offline_report(Path(synthesize.write(synthesize.MODELS["glm-5"](), folder, 10)[0]))


def hostile_report(good: Report, names: Sequence[str] = HOSTILE) -> Report:
    """`good` with `names` wherever a text of a file can stand."""
    report = copy.deepcopy(good)
    model = report["model"]
    first = names[1]
    model.update(name=first, path=f"/tmp/{first}", architecture=first, mmproj=first)
    report["target"].update(model_class=first, device=first, draft_error=first)
    report["config"] = {"source": first, "assumed": {name: name for name in names}}
    report["header"] = {name: name for name in names} | {"general.license": first, "general.size_label": first}
    report["serve"] = None
    report["ok"] = False
    for no, name in enumerate(names):
        base = {"tensor": name, "ggml_type": name[:80], "shape": [no, 4], "bytes": 1000 * (no + 1)}
        use = {"name": name, "shard": name[:20], "experts": None, "checkpoint": 0}
        entry = {
            **base,
            "inferred": False,
            "role": "target",
            "transform": name,
            "storage": "packed",
            "checkpoint": [name],
        }
        report["assignments"].append({**entry, "parameters": [use], "reason": None})
        kind = ("unmapped", "mismatched")[no % 2]
        report[kind].append({**base, "reason": name, "remedy": name})
        report["missing"].append(
            {"parameter": name, "role": "target", "reason": f"{name} is not in the file", "remedy": name}
        )
        report["phantom"].append({"tensor": name, "checkpoint": [name], "reason": name})
        report["warnings"].append({"code": "W103", "message": name, "remedy": name})
        finding = {"kind": "text", "line": 1, "text": name, "refused": True}
        report["templates"].append({"key": name, "sha256": "", "bytes": 1, "findings": [finding]})
    for kind in ("unmapped", "missing", "phantom", "mismatched"):
        report["summary"][kind] = len(report[kind])
    group = {
        "role": "target",
        "layer": first,
        "tensors": [first],
        "types": [first],
        "storage": "dense",
        "reason": first,
    }
    report["storage"] = {
        "asked": "auto",
        "note": "",
        "groups": [{**group, "bytes_per_rank": 1, "dense_bytes_per_rank": 2}],
    }
    report["stock"] = {"gguf": "0", "entries": 1, "unmapped": list(names), "phantom": list(names)}
    return report


def long_report(good: Report, tensors: int) -> Report:
    """`good` with that many tensors, in blocks of 23 parts."""
    report = copy.deepcopy(good)
    base = report["assignments"][1]
    types = ("Q4_K", "Q6_K", "F32")
    report["assignments"] = [
        {
            **base,
            "tensor": f"blk.{no // 23}.part_{no % 23}.weight",
            "ggml_type": types[no % 23 % 3],
            "bytes": 1000 + no % 977,
            "checkpoint": [f"model.layers.{no // 23}.module_{no % 23}.weight"],
            "parameters": [],
        }
        for no in range(tensors)
    ]
    report["model"].update(tensors=tensors, blocks=tensors // 23 + 1)
    report["summary"].update(tensors=tensors, mapped=tensors)
    return report
