"""Questions to vLLM for `vllm_server.py`: functions from one JSON value to another. No module of the tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Request = dict[str, Any]


def spec_layers(request: Request) -> list[int | None]:
    """What vLLM's own get_spec_layer_idx_from_weight_name says of names, under some config keys."""
    from ggufmap.target import compat

    function = compat.spec_layer_function()
    assert function is not compat.spec_layer_fallback, "this vLLM has no such function"
    config = SimpleNamespace(**request["config"])
    return [function(config, name) for name in request["names"]]


def draft_config(request: Request) -> dict[str, Any]:
    """The draft's classes, and what stands on its config of the keys in `flags`, for a written config.json.

    `lose` takes away what vLLM does for nested keys: they do not reach the draft's config, as before vLLM 0.30.
    """
    import json

    from vllm.engine.arg_utils import EngineArgs

    from ggufmap.target import compat

    if request["lose"]:
        _lose(request["flags"])
    compat.look_at_models_here()
    compat.stand_in_for_torchvision()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(request["config"]))
        engine = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            dtype="bfloat16",
            enable_prefix_caching=False,  # as the trace does, and why
            speculative_config=request["speculative"],
        ).create_engine_config()
    found = engine.speculative_config.draft_model_config.hf_config
    return {"architectures": found.architectures, "flags": {k: getattr(found, k, None) for k in request["flags"]}}


def trace_without_promotion() -> None:
    """The worker in a vLLM that loses the flags."""
    from ggufmap.target import worker

    _lose(["index_share_for_mtp_iteration"])
    worker.main()


def trace_with_amx() -> None:
    """The worker on a processor with Intel's AMX, which changes what vLLM configures for MLA."""
    _trace_on_a_processor(amx=True)


def trace_without_amx() -> None:
    """The worker on any other."""
    _trace_on_a_processor(amx=False)


def _trace_on_a_processor(*, amx: bool) -> None:
    import torch

    from ggufmap.target import worker

    torch.cpu._is_amx_tile_supported = lambda: amx
    worker.main()


LIKE_THE_WORKER = ("trace_without_promotion", "trace_with_amx", "trace_without_amx")
"""Those that read standard input, write standard output and end the process themselves."""


def _lose(flags: list[str]) -> None:
    """Let vLLM's override leave out `flags`."""
    from vllm.config.speculative import SpeculativeConfig

    original = SpeculativeConfig.hf_config_override

    def override(config: Any) -> Any:
        made = original(config)
        for flag in flags:
            made.__dict__.pop(flag, None)
        return made

    SpeculativeConfig.hf_config_override = staticmethod(override)
