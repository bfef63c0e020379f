"""How much host memory a load may take: the option, its way into vLLM's worker processes, and what the machine has."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ggufmap.errors import UsageError

DEFAULT = "1Gi"
KEY = "max_host_memory"
"""In vLLM's `--model-loader-extra-config`, which reaches every worker, on other machines too: bytes."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


def parse_size(text: str, option: str) -> int:
    """Bytes of a size such as 500M or 2Gi. Raises UsageError, which names `option`."""
    match = re.fullmatch(r"(\d+)\s*([KMG]I?)?B?", text.strip().upper())
    if match is None or not int(match[1]):
        raise UsageError(
            f"{option} {text!r}: a number with K, M, G, Ki, Mi or Gi is expected", hint=f"For example {option} 2Gi."
        )
    return int(match[1]) * _UNITS[match[2] or ""]


def loader_arguments(limit: int) -> list[str]:
    """The vLLM options that tell each worker's loader its limit."""
    return ["--model-loader-extra-config", json.dumps({KEY: limit})]


def limit_of(extra_config: Any) -> int:
    """The limit in vLLM's `model_loader_extra_config`, or the default."""
    found = extra_config.get(KEY) if isinstance(extra_config, Mapping) else None
    if found is None:
        return parse_size(DEFAULT, KEY)
    return parse_size(str(found), f"model_loader_extra_config {KEY}")


def available() -> int:
    """Bytes of memory that this process could still take, by the kernel's and the container's account."""
    lines = _MEMINFO.read_text(encoding="ascii").splitlines() if _MEMINFO.exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit = _CGROUP.read_text(encoding="ascii").strip() if _CGROUP.exists() else "max"
    free += [int(limit)] if limit.isdigit() else []
    return min(free, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
