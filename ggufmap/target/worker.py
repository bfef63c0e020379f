"""The own process of traces, probes and surveys: a request as JSON on stdin, the answer on stdout, logs on stderr."""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer one request: the fields of `trace.Request` or of `probe.Probe`, names as [name, shape] pairs; or a
    question of `survey.py`, named by `survey`.
    """
    # Libraries print to stdout as they please: keep the real one for the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    gc.disable()  # a short life with many objects that all stay: looking for garbage costs a tenth of it
    request = json.load(sys.stdin)
    handle = _surveyed if "survey" in request else _probed if "stages" in request else _traced
    json.dump(handle(request), answer, default=list)
    answer.close()
    # Skip interpreter shutdown: vLLM's process groups would only warn about not being destroyed.
    sys.stderr.flush()
    os._exit(0)


def _traced(request: dict[str, Any]) -> dict[str, Any]:
    from ggufmap.mapping.plan import Role
    from ggufmap.target.devices import World
    from ggufmap.target.trace import Request, trace_models

    return asdict(
        trace_models(
            Request(
                model_dir=Path(request["model_dir"]),
                target=[(name, tuple(shape)) for name, shape in request["target"]],
                draft=[(name, tuple(shape)) for name, shape in request["draft"]],
                draft_flags=request["draft_flags"],
                world=World(**request["world"]),
                ask_packing=request["ask_packing"],
                layers={Role(role): layers for role, layers in request["layers"].items()},
            )
        )
    )


def _probed(request: dict[str, Any]) -> dict[str, Any]:
    from ggufmap.target.devices import World
    from ggufmap.target.probe import Probe, probe_model

    return probe_model(
        Probe(
            model_dir=Path(request["model_dir"]),
            config=request["config"],
            wanted=request["wanted"],
            stages=[[[(n, tuple(s)) for n, s in names] for names in stages] for stages in request["stages"]],
            world=World(**request["world"]),
        )
    )


def _surveyed(request: dict[str, Any]) -> dict[str, Any]:
    from ggufmap.target import survey
    from ggufmap.target.devices import World

    if request["survey"] == "environment":
        return survey.environment(request["device"])
    return survey.model(Path(request["model_dir"]), World(**request["world"]), draft=request["draft"])


if __name__ == "__main__":
    main()
