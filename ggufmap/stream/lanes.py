"""Lanes: how a thread's bytes get to a destination on a GPU.

Packed bytes cross the bus, out of the thread's pinned buffer, and are decoded on the device. Each thread has a CUDA
stream of its own, so that one thread's copy runs beside another's decoding and a third one's reading; a thread waits
for its stream before it uses its buffer again, so no copy can see the bytes of the next piece.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Put = Callable[[Bytes], torch.Tensor]
"""Contiguous bytes on the host -> the same bytes on the device, valid until the lane is left."""


class Lanes:
    """The lanes of a load's threads to the devices of its destinations."""

    def __init__(self) -> None:
        self._local = threading.local()

    def mark(self, device: torch.device) -> Any:
        """What the caller has given to `device` so far: a lane that is entered with it works after that."""
        if device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event

    @contextmanager
    def enter(self, device: torch.device, mark: Any) -> Iterator[Put | None]:
        """This thread's lane to `device`; None where the host writes the destination itself.

        When the block ends, all that was done in it is done on the device, too.
        """
        if device.type != "cuda":
            yield None
            return
        stream = self._stream(device)
        # The device, too: a new thread's is GPU 0. Leaving a stream goes back there and begins to use it, half a
        # gigabyte of GPU 0 for each rank's process; leaving a device goes back only to one that is in use.
        with torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(mark)
            try:
                yield lambda raw: torch.from_numpy(raw).to(device, non_blocking=True)
            finally:
                stream.synchronize()

    def _stream(self, device: torch.device) -> Any:
        streams: dict[torch.device, Any] = self._local.__dict__.setdefault("streams", {})
        if device not in streams:
            streams[device] = torch.cuda.Stream(device)
        return streams[device]


def host_memory(nbytes: int, *, pinned: bool) -> Bytes:
    """Memory on a cache line's edge; page-locked if asked for and the system lets us (then copies to a GPU run at the
    bus's rate, and beside other work).
    """
    if pinned:
        try:
            locked: Bytes = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True).numpy()
            return locked
        except RuntimeError:  # a limit on locked memory: slower, not wrong
            pass
    made: Bytes = torch.empty(nbytes, dtype=torch.uint8, device="cpu").numpy()
    return made
