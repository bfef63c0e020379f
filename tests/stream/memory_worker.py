"""Loads the experts of a GGUF file into one reused parameter and says what memory that took, in its own process.

`memory_worker.py FILE LIMIT` prints {"grown": bytes, "accounted": bytes, "values": number}. Grown is the highest
anonymous memory, sampled all the while, above what there was when the destination was there and everything imported.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import resolve
from ggufmap.stream import Budget, Lazy, Workers, stream


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024


@contextmanager
def sampled(peak: list[int]) -> Iterator[None]:
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.001):
            peak.append(max(peak[-1], anonymous()))
            del peak[:-1]

    thread = threading.Thread(target=sample)
    thread.start()
    yield
    stop.set()
    thread.join()


def main() -> None:
    path, limit = Path(sys.argv[1]), int(sys.argv[2])
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))
        plan = replace(plan, missing=())  # the experts of one block are enough
        largest = max(tensor.elements // tensor.shape[0] for tensor in checkpoint.tensors.values())
        destination = torch.ones(largest, dtype=torch.bfloat16)

        def load(budget: Budget, most: int) -> int:
            values = 0
            with Workers(budget, background=True) as workers:
                for _, tensor in stream(plan, checkpoint, torch.bfloat16, lazy=Lazy(), workers=workers):
                    destination[: tensor.numel()].view(tensor.shape).copy_(tensor)
                    values += tensor.numel()
                    if values >= most:
                        break
            return values

        load(Budget(16 << 20), 1)  # imports, and the threads' stacks
        budget, peak = Budget(limit), [0]
        before = anonymous()
        with sampled(peak):
            values = load(budget, sys.maxsize)
    json.dump({"grown": peak[0] - before, "accounted": budget.peak, "values": values}, sys.stdout)


if __name__ == "__main__":
    main()
