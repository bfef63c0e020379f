"""What one rank holds at several sizes of tensor parallelism, each size traced like the one that was asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ggufmap.errors import GgufmapError
from ggufmap.mapping import Plan, resolve
from ggufmap.mapping.memory import RankMemory, rank_memory
from ggufmap.mapping.storage import Storage
from ggufmap.serving.preflight import Preflight
from ggufmap.serving.settle import settle
from ggufmap.serving.stages import announce
from ggufmap.target.devices import World

SIZES = (1, 2, 4, 8, 16)
_CORES_PER_TRACE = 4
_AT_ONCE = 4  # a trace is a process of 1 to 2 GB
_PYDANTIC = re.compile(r"^Value error, | \[type=\w+, .*$")


def rank_sizes(found: Preflight, world: World, storage: Storage, sizes: Sequence[int] = SIZES) -> list[RankMemory]:
    """The memory of one rank of each size; why not, where vLLM cannot split the model so. Empty without a trace.

    `world` and `storage` are those that `found` was traced with; its own size is not traced again.
    """
    traced = rank_memory(found.plan)
    if traced is None:
        return []
    wanted = [size for size in dict.fromkeys(sizes) if size != traced.tensor_parallel]
    if wanted:
        announce(f"Asking vLLM for one rank of {', '.join(map(str, wanted))} (as long again for each) ...")
    plan = resolve(found.checkpoint, found.architecture)
    at_once = min(_AT_ONCE, len(os.sched_getaffinity(0)) // _CORES_PER_TRACE)
    with ThreadPoolExecutor(max(1, at_once)) as pool:
        others = pool.map(lambda size: _ask(found, plan, replace(world, tensor_parallel=size), storage), wanted)
        return [traced, *others]


def _ask(found: Preflight, plan: Plan, world: World, storage: Storage) -> RankMemory:
    try:
        memory = rank_memory(settle(plan, found.config.values, (), world, storage))
    except GgufmapError as e:
        return RankMemory(world.tensor_parallel, problem=_words(e.message))
    assert memory is not None  # settle has traced
    return memory


def _words(message: str) -> str:
    """The last line of an error that says something, without what pydantic puts around it."""
    lines = [line.strip() for line in message.strip().splitlines()]
    said = [line for line in lines if line and not line.startswith("For further information")]
    return _PYDANTIC.sub("", said[-1])
