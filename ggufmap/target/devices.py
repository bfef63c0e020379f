"""Names of devices to trace for."""

from __future__ import annotations

import re

from ggufmap.errors import UsageError


def parse_device(device: str) -> tuple[int, int] | None:
    """(major, minor) of `sm_100`, None for `cpu`. Raises UsageError for anything else."""
    if device == "cpu":
        return None
    match = re.fullmatch(r"sm_(\d+)(\d)", device)
    if match is None:
        raise UsageError(f"--device {device!r}: known are cpu and sm_XY (sm_90, sm_100, sm_120)")
    return int(match[1]), int(match[2])
