"""The trace's own process: a request as JSON on stdin, the TraceResult as JSON on stdout, logs on stderr."""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    """Answer one request: the fields of `trace.Request`, names as [name, shape] pairs."""
    # Libraries print to stdout as they please: keep the real one for the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    gc.disable()  # a short life with many objects that all stay: looking for garbage costs a tenth of it
    request = json.load(sys.stdin)
    from ggufmap.target.devices import World
    from ggufmap.target.trace import Request, trace_models

    result = trace_models(
        Request(
            model_dir=Path(request["model_dir"]),
            target=[(name, tuple(shape)) for name, shape in request["target"]],
            draft=[(name, tuple(shape)) for name, shape in request["draft"]],
            draft_flags=request["draft_flags"],
            world=World(**request["world"]),
        )
    )
    json.dump(asdict(result), answer, default=list)
    answer.close()
    # Skip interpreter shutdown: vLLM's process groups would only warn about not being destroyed.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
