"""Simulated devices: make vLLM's CUDA build believe in a GPU that is not there, so that its real classes can be traced.

Only names, shapes and choices of class depend on the device, and those need no kernel. Runs in the trace's own process
(nothing is undone), with a stub `libcuda.so.1` on the library path that answers "no device" to every call.
Checked with vllm 0.33.0 (vllm/platforms/cuda.py, vllm/utils/torch_utils.py, vllm/v1/worker/workspace.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MEMORY_BYTES = 180 << 30
_MULTIPROCESSORS = 148


class CudaToMeta(TorchFunctionMode):  # type: ignore[misc] # torch is untyped here
    """Tensors that a model puts on `cuda`, by name or number, go to the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if isinstance(device, int) or "cuda" in str(device):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def cuda_to_meta() -> AbstractContextManager[Any]:
    """`CudaToMeta` where a GPU is simulated; elsewhere nothing, since it costs time at every attribute of a tensor."""
    from vllm.platforms import current_platform

    return CudaToMeta() if current_platform.device_type == "cuda" else nullcontext()


class ReadsOfMeta(TorchFunctionMode):  # type: ignore[misc] # torch is untyped here
    """What a class reads of its own tensors while it is built (ALiBi slopes, an activation's constants): zeros."""

    _READS = (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._READS and args[0].is_meta:
            args = (torch.zeros(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:])
        return func(*args, **(kwargs or {}))


class _Nothing:
    """Stands for a stream or event that nobody waits for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _KernelConfig:
    """triton.Config, which vLLM stands in for with a function where no driver is active, and reads on sm_90."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **_: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


def without_streams() -> None:
    """Let classes make CUDA streams and events while they are built (DeepSeek V4), where torch has none.

    vLLM's CPU worker does the same (vllm/v1/worker/cpu/shm.py). For the trace's own process only.
    """
    torch.cuda.Stream = torch.cuda.Event = _Nothing


def enter(capability: tuple[int, int], devices: int) -> None:
    """Make this process see `devices` GPUs of the given compute capability. Call before vLLM builds anything."""
    import vllm.platforms as platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    major, minor = capability
    name = f"simulated sm_{major}{minor}"

    class Simulated(NonNvmlCudaPlatform):  # type: ignore[misc] # vLLM is untyped here
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(major, minor))
        has_device_capability = classmethod(lambda cls, wanted, device_id=0: major * 10 + minor >= _as_number(wanted))
        get_device_name = classmethod(lambda cls, device_id=0: name)
        get_device_total_memory = classmethod(lambda cls, device_id=0: _MEMORY_BYTES)
        num_compute_units = classmethod(lambda cls, device_id=0: _MULTIPROCESSORS)
        device_count = classmethod(lambda cls: devices)
        log_warnings = classmethod(lambda cls: None)

    _ = platforms.current_platform  # resolve once, so that the assignment below is not overwritten
    platforms._current_platform = Simulated()
    import vllm.utils.torch_utils as torch_utils
    from vllm import triton_utils

    if not triton_utils.HAS_TRITON:
        triton_utils.triton.Config = _KernelConfig
    torch_utils._aux_stream = _Nothing()
    without_streams()
    # flashinfer and some model classes ask torch itself.
    properties = SimpleNamespace(
        name=name, major=major, minor=minor, total_memory=_MEMORY_BYTES, multi_processor_count=_MULTIPROCESSORS
    )
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: capability
    torch.cuda.get_device_name = lambda device=None: name


def init_workspace() -> None:
    """vLLM's layers ask the workspace manager for buffers: give them meta ones."""
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device("meta"))


def _as_number(wanted: Any) -> int:
    return wanted if isinstance(wanted, int) else int(wanted[0]) * 10 + int(wanted[1])
