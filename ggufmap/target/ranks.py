"""A world of many ranks in one process: enough for vLLM's layers to take the shapes of rank 0, no communication.

For the trace's own process only: nothing is undone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any


def init_world(config: Any) -> None:
    """Give vLLM's layers their process groups, as rank 0 of the parallel config's world."""
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    size = config.parallel_config.world_size
    if size > 1:
        _fake_groups(size)
    with tempfile.TemporaryDirectory() as scratch:
        rendezvous = (Path(scratch) / "rendezvous").as_uri()
        backend = "gloo" if size == 1 else "fake"
        init_distributed_environment(size, 0, rendezvous, local_rank=0, backend=backend)
        initialize_model_parallel(config.parallel_config.tensor_parallel_size, 1)


def _fake_groups(size: int) -> None:
    """torch's fake process group: every collective returns at once. vLLM asks for gloo beside the device's backend."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.distributed import parallel_state

    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    new_group = torch.distributed.new_group

    def fake_group(ranks: Any = None, timeout: Any = None, backend: Any = None, **kwargs: Any) -> Any:
        return new_group(ranks, backend="fake", **kwargs)

    torch.distributed.new_group = fake_group
    init = parallel_state.GroupCoordinator.__init__

    def without_communicators(self: Any, *args: Any, **kwargs: Any) -> None:
        """Shared memory and NCCL communicators would wait for the other ranks."""
        names = ("group_ranks", "local_rank", "torch_distributed_backend", "use_device_communicator")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        rest = args[len(names) :]
        given.update(use_device_communicator=False)
        if not rest:
            given["use_message_queue_broadcaster"] = False
        init(self, *(given.pop(name) for name in names), *rest, **given)

    parallel_state.GroupCoordinator.__init__ = without_communicators
