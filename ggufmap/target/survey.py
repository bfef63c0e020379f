"""Questions of `ggufmap doctor` to torch and vLLM: what is here, and what vLLM says of a model on a device.

Runs in a process of its own (see `worker.py`): a package that breaks or ends the process at import is an answer, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ggufmap.target.devices import World, parse_device
from ggufmap.target.words import last_words

_PLUGINS = "vllm.general_plugins"
_PACKAGES = ("torch", "torchvision", "torchaudio", "torchcodec", "transformers", "vllm")
_DRIVER = Path("/proc/driver/nvidia/version")
_SHOWN = 300
Answer = dict[str, Any]


def environment(device: str = "") -> Answer:
    """What the installed torch and vLLM say of themselves; with a `device`, as if that GPU was there."""
    broken = dict(_broken(_PACKAGES))
    answer: Answer = {"broken": broken, "driver": _driver()}
    if "torch" not in broken and importlib.util.find_spec("torch") is not None:
        answer |= _torch()
    if "vllm" not in broken and importlib.util.find_spec("vllm") is not None:
        answer |= _vllm(device, broken)
    return answer


def _vllm(device: str, broken: dict[str, str]) -> Answer:
    from ggufmap.target import compat, simulate

    try:
        capability = parse_device(device) if device else None
        if capability is not None:
            simulate.enter(capability, devices=1)
        platform = compat.device_name()
        plugins = _plugins()
        return {"platform": platform, "plugins": plugins, **compat.engine_defaults()}
    except Exception as e:  # what vLLM imports late may be broken as well
        broken["vllm"] = last_line(e)
        return {}


def model(model_dir: Path, world: World, *, draft: bool) -> Answer:
    """What vLLM says of the model that config.json in `model_dir` describes: its dtype, and a backend for each kind of
    attention layer.
    """
    from ggufmap.target.build import build, engine

    answer: Answer = {"attention": []}
    try:
        with engine(model_dir, world, draft_blocks=draft) as (config, _):
            answer |= _dtype(model_dir)
            with _watched() as seen:
                build(config, config.model_config)
                answer["attention"] = _answers("target", seen)
            if config.speculative_config is not None:
                with _watched() as seen:
                    build(config, config.speculative_config.draft_model_config, prefix="draft")
                    answer["attention"] += _answers("draft", seen)
    except Exception as e:  # a class or a check of vLLM may fail in any way
        answer["error"] = last_line(e)
    return answer


def last_line(error: BaseException) -> str:
    """Kind and the last line of the message, cut at a length that a report can show."""
    return f"{type(error).__name__}: {last_words(str(error))}".rstrip(": ")[:_SHOWN]


def _broken(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as e:  # an import runs anything
            yield name, last_line(e)


def _driver() -> str:
    """The NVIDIA driver's version, empty without one."""
    if not _DRIVER.exists():
        return ""
    words = _DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0].split()
    return next((word for word in words if word[0].isdigit()), "")


def _torch() -> Answer:
    import torch

    flags = torch._C._cuda_getArchFlags() if torch.version.cuda and hasattr(torch._C, "_cuda_getArchFlags") else None
    answer: Answer = {
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_archs": (flags or "").split(),
        "gpus": [],
    }
    if torch.version.cuda is None:
        return answer
    try:
        torch.cuda.init()
        answer["gpus"] = [_gpu(index) for index in range(torch.cuda.device_count())]
    except Exception as e:  # RuntimeError, AssertionError, and whatever a driver raises
        answer["cuda_error"] = last_line(e)
    return answer


def _gpu(index: int) -> Answer:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": torch.cuda.get_device_name(index),
        "capability": torch.cuda.get_device_capability(index),
        "total": total,
        "free": free,
    }


class _Said(logging.Handler):
    """Collects the errors that are logged rather than raised."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            args = record.args if isinstance(record.args, tuple) else ()
            self.errors.append((str(args[0]) if args else record.name, last_line(record.exc_info[1])))


def _plugins() -> Answer:
    """What vLLM's own `load_general_plugins` makes of the installed plugins."""
    from vllm import plugins

    from ggufmap.target import compat

    said = _Said()
    loggers = [logging.getLogger(name) for name in ("vllm", "vllm.ggufmap")]
    loggers[0].addHandler(said)
    loggers[1].setLevel(logging.WARNING)  # whatever vLLM's own level is
    found = entry_points(group=_PLUGINS)
    allowed = os.environ.get("VLLM_PLUGINS")
    fatal = False
    try:
        plugins.load_general_plugins()
    except Exception as e:
        fatal = True
        said.errors += list(_raising(found, allowed)) or [("a plugin", last_line(e))]
    return {
        "allowed": allowed,
        "entries": sorted(entry.name for entry in found),
        "formats": compat.load_formats(),
        "failures": said.errors,
        "fatal": fatal,
    }


def _raising(entries: Any, allowed: str | None) -> Iterator[tuple[str, str]]:
    """Which plugins raise, one by one: they may be run more than once."""
    for entry in entries:
        if allowed is None or entry.name in allowed.split(","):
            try:
                entry.load()()
            except Exception as e:
                yield entry.name, last_line(e)


def _dtype(model_dir: Path) -> Answer:
    """The dtype that vLLM resolves by itself, and those that its platform has."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    supported = [_short(dtype) for dtype in current_platform.supported_dtypes]
    try:
        made = EngineArgs(model=str(model_dir), skip_tokenizer_init=True, dtype="auto").create_model_config()
        return {"supported_dtypes": supported, "dtype": _short(made.dtype)}
    except Exception as e:  # vLLM's checks raise all kinds
        return {"supported_dtypes": supported, "dtype_error": last_line(e)}


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass
class _Kind:
    """Layers that ask for the same: how many there are, and what the platform says."""

    layers: int
    needs: str
    chosen: str | None = None
    error: str | None = None
    others: list[str] = field(default_factory=list)
    refused: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def _watched() -> Iterator[dict[Any, _Kind]]:
    """While active, each question of a layer for its attention backend is kept, with the platform's own answer."""
    from ggufmap.target import compat

    seen: dict[Any, _Kind] = {}

    def asked(selected: Any, config: Any, num_heads: int | None) -> None:
        key = (selected, config, num_heads)
        if key in seen:
            seen[key].layers += 1
        else:
            seen[key] = _ask(selected, config, num_heads)

    with compat.watching_attention(asked):
        yield seen


def _ask(selected: Any, config: Any, num_heads: int | None) -> _Kind:
    from vllm.platforms import current_platform

    from ggufmap.target import compat

    kind = _Kind(1, _needs(config))
    valid, kind.refused = compat.attention_candidates(current_platform, config, num_heads)
    select = compat.platform_selection(current_platform)
    try:
        kind.chosen = compat.backend_name(select(selected, attn_selector_config=config, num_heads=num_heads))
    except Exception as e:  # NotImplementedError, ValueError: the platform's way to say no
        kind.error = last_line(e)
    kind.others = [name for name in valid if name != kind.chosen]
    return kind


def _needs(config: Any) -> str:
    """What a layer asks for, in words: `MLA sparse, head size 576, bfloat16`."""
    values = config._asdict()
    kind = " ".join(
        ["MLA" if values.get("use_mla") else "attention", *(["sparse"] if values.get("use_sparse") else [])]
    )
    words = [kind, f"head size {values['head_size']}", _short(values["dtype"])]
    words += ["sliding window"] if values.get("has_sliding_window") else []
    words += ["sinks"] if values.get("has_sink") else []
    cache = values.get("kv_cache_dtype")
    words += [f"{cache} cache"] if cache not in (None, "auto") else []
    return ", ".join(words)


def _answers(role: str, seen: Mapping[Any, _Kind]) -> list[Answer]:
    return [{"role": role, **vars(kind)} for kind in seen.values()]
