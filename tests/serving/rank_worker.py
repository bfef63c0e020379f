"""Loads a GGUF file into vLLM's model on several ranks, each a process with gloo between them. No module of the tests.

`rank_worker.py FOLDER` reads FOLDER/jobs.json, a list of {"model_dir", "ranks", "experts", "out"}: each rank loads the
model directory through the load format, then, into a second model, dense tensors that gguf-py decoded, which vLLM's own
loaders cut. It writes OUT.RANK: bytes read and of the file, and the parameters that are not the same bit for bit. The
ranks are forks of this process: what takes long is importing vLLM, and that happens once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import resolve
from ggufmap.modeldir.manifest import read_manifest
from ggufmap.serving.loader import load_into


def models(job: dict[str, Any], rank: int) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Two unfilled models of this rank."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    arguments = EngineArgs(
        model=job["model_dir"],
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        dtype="bfloat16",
        tensor_parallel_size=job["ranks"],
        enable_expert_parallel=job["experts"],
        distributed_executor_backend="external_launcher",
    )
    rendezvous = Path(job["out"]).with_suffix(".rendezvous").as_uri()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]))
    os.environ["VLLM_DIST_IDENT"] = str(rank)  # ranks that do not agree on it use gloo, and leave no shared memory
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(job["ranks"], rank, rendezvous, rank, "gloo")
        initialize_model_parallel(job["ranks"], 1)
        made = []
        for _ in range(2):
            config.compilation_config.static_forward_context.clear()
            with set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
                made.append(initialize_model(vllm_config=config))
        return made[0], made[1]


def dense(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The checkpoint's tensors whole, decoded by gguf-py. Only renamed or cut by expert, as this family needs it."""
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))
    for assignment in plan.assignments:
        stored = reader[assignment.tensors[0]]
        values = torch.from_numpy(np.array(gguf.quants.dequantize(stored.data, stored.tensor_type), dtype=np.float32))
        assert assignment.transform.name in ("copy", "experts"), assignment
        parts = values.unbind(0) if assignment.transform.name == "experts" else [values]
        yield from zip(assignment.checkpoint, parts, strict=True)


def work(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Load both ways and compare."""
    ours, reference = models(job, rank)
    for model in (ours, reference):
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))
    folder = Path(job["model_dir"])
    done = load_into(ours, folder, torch.bfloat16)
    with torch.no_grad():
        reference.load_weights(dense(read_manifest(folder).gguf))
    expected = dict(reference.named_parameters())
    differ = [name for name, found in ours.named_parameters() if not torch.equal(found, expected[name])]
    return {"read": done.read, "stored": done.stored, "parameters": done.parameters, "differ": differ}


def main() -> None:
    import vllm.engine.arg_utils
    import vllm.model_executor.models.qwen3_moe  # noqa: F401

    for job in json.loads((Path(sys.argv[1]) / "jobs.json").read_text()):
        children = []
        for rank in range(job["ranks"]):
            child = os.fork()
            if not child:
                try:
                    Path(f"{job['out']}.{rank}").write_text(json.dumps(work(job, rank)))
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
