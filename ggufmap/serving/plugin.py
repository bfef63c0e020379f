"""vLLM's plugin hook (`vllm.general_plugins`): makes the load format `ggufmap` known. Runs in every vLLM process.

It must never disturb a vLLM that serves something else: it only adds one entry to vLLM's table of load formats, through
vLLM's own `register_model_loader`, and whatever goes wrong becomes a log line.
"""

from __future__ import annotations

import logging

LOAD_FORMAT = "ggufmap"


def register() -> None:
    """Register the load format. Safe to call more than once; never raises."""
    try:
        from vllm.model_executor import model_loader

        if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            from ggufmap.serving.loader import make_loader_class

            model_loader.register_model_loader(LOAD_FORMAT)(make_loader_class())
    except Exception:
        logging.getLogger("vllm.ggufmap").warning(
            "ggufmap: the load format %r is not available in this vLLM", LOAD_FORMAT, exc_info=True
        )
