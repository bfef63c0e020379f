"""Where a model would run: the device to trace for, and how many ranks share the model."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ggufmap.errors import UsageError

_MAX_RANKS = 1024
_DEVICES = "sm_90 is Hopper (H100, H200), sm_100 Blackwell (B200), sm_120 its RTX cards (RTX PRO 6000, 5090)."


@dataclass(frozen=True, slots=True)
class World:
    """One rank's view: the device (`sm_100` simulates that GPU, empty takes what vLLM finds) and the ranks."""

    device: str = ""
    tensor_parallel: int = 1
    expert_parallel: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for an unknown device or an absurd number of ranks."""
        if self.device:
            parse_device(self.device)
        if not 1 <= self.tensor_parallel <= _MAX_RANKS:
            raise UsageError(
                f"--tp {self.tensor_parallel}: allowed are 1 to {_MAX_RANKS}", hint="N is the number of GPUs."
            )


def parse_device(device: str) -> tuple[int, int] | None:
    """(major, minor) of `sm_100`, None for `cpu`. Raises UsageError for anything else."""
    if device == "cpu":
        return None
    match = re.fullmatch(r"sm_(\d+)(\d)", device)
    if match is None:
        raise UsageError(f"--device {device!r}: known are cpu and sm_XY", hint=_DEVICES)
    return int(match[1]), int(match[2])
