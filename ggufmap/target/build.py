"""Build a vLLM model class on the meta device: no memory, no weights, for any device and number of ranks.

Needs vLLM; runs in a process of its own (see `worker.py`), since vLLM keeps process-wide state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ggufmap.target import compat, simulate
from ggufmap.target.devices import World, parse_device
from ggufmap.target.ranks import init_world

_SIMULATED_DEVICES = 8
_SHOWN = 300


@contextmanager
def engine(model_dir: Path, world: World, draft_blocks: bool = False) -> Iterator[tuple[Any, str | None]]:
    """vLLM's configuration for the config.json in `model_dir`, current while in it, in a world of its ranks; and why it
    has no draft, where one is asked for and vLLM makes none.

    For a process of its own: most of it is never undone. Raises whatever vLLM raises.
    """
    from vllm.config import set_current_vllm_config

    capability = parse_device(world.device) if world.device else None
    if capability is not None:
        simulate.enter(capability, devices=max(world.tensor_parallel, _SIMULATED_DEVICES))
    else:
        compat.stand_in_for_torchvision()
    compat.look_at_models_here()
    config, draft_error = _engine_config(model_dir, world, draft_blocks)
    if compat.device_name() == "cpu":
        compat.allow_sparse_attention_on_cpu()
        simulate.without_streams()
    if world.expert_parallel:
        compat.keep_expert_maps_real()
    with set_current_vllm_config(config):
        init_world(config)
        if capability is not None:
            simulate.init_workspace()
        yield config, draft_error


def _engine_config(model_dir: Path, world: World, draft_blocks: bool) -> tuple[Any, str | None]:
    """vLLM's configuration; where it makes none with a draft, one without, and why."""
    if not draft_blocks:
        return _configuration(model_dir, world, None), None
    try:
        return _configuration(model_dir, world, {"method": "mtp", "num_speculative_tokens": 1}), None
    except Exception as e:  # vLLM's checks raise all kinds; a fault of the target is raised again below
        return _configuration(model_dir, world, None), in_one_line(e)


def _configuration(model_dir: Path, world: World, speculative: dict[str, Any] | None) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(model_dir),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        dtype="bfloat16",
        tensor_parallel_size=world.tensor_parallel,
        enable_expert_parallel=world.expert_parallel,
        # Says nothing of parameters. vLLM 0.32 (platforms/cpu.py) turns it off late for MLA where a CPU has no AMX, and
        # then refuses the block size that it chose for a hybrid model before (GLM-5.3-Flash).
        enable_prefix_caching=False,
        distributed_executor_backend="mp" if world.tensor_parallel > 1 else None,
        speculative_config=speculative,
    ).create_engine_config()


def build(config: Any, model_config: Any, prefix: str = "") -> nn.Module:
    """A vLLM model with every parameter on the meta device (no memory, no weights)."""
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with (
        set_default_torch_dtype(torch.bfloat16),
        torch.device("meta"),
        simulate.cuda_to_meta(),
        simulate.ReadsOfMeta(),
    ):
        model: nn.Module = initialize_model(vllm_config=config, model_config=model_config, prefix=prefix)
    _to_meta(model)
    return model


def _to_meta(model: nn.Module) -> None:
    """Move what a class allocates for real whatever the default device (vLLM's Transformers classes: norms, biases)."""
    moved: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.is_meta:
                continue
            if parameter not in moved:
                moved[parameter] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
                moved[parameter].__dict__.update(parameter.__dict__)
            module._parameters[name] = moved[parameter]


def in_one_line(error: Exception) -> str:
    """Kind and message, cut at a length that a report can show."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN]
