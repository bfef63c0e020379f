"""The load format `ggufmap`: streams a GGUF file into the vLLM model and proves that every element was written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def make_loader_class() -> type:
    """The vLLM loader class; made on demand, so that importing this module costs nothing."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class GgufmapLoader(BaseModelLoader):  # type: ignore[misc] # vLLM is untyped here
        """Loads a model directory that ggufmap made (see `modeldir/build.py`)."""

        def download_model(self, model_config: Any) -> None:
            """Nothing to fetch: the manifest names a local file."""

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            """Fill `model`. Raises FileError, MappingError or UnsupportedError before or instead of garbage."""
            load_into(model, Path(model_config.model), model_config.dtype)

    return GgufmapLoader


def load_into(model: nn.Module, model_dir: Path, dtype: Any) -> None:
    """Stream the GGUF file that `model_dir` stands for into `model`, quantised tensors rounded to `dtype`.

    Raises FileError when the file is not the one the folder was made from, MappingError when the plan has problems or
    the load did not write every element of every parameter exactly once.
    """
    from vllm.logger import init_logger

    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.errors import FileError
    from ggufmap.mapping import resolve
    from ggufmap.modeldir.manifest import read_manifest
    from ggufmap.serving.progress import load_progress
    from ggufmap.stream import stream

    started = time.perf_counter()
    manifest = read_manifest(model_dir)
    with open_checkpoint(manifest.gguf) as checkpoint:
        if checkpoint.header_hash() != manifest.header_hash:
            raise FileError(
                f"{manifest.gguf}: its header is not the one that {model_dir} was made from",
                hint="The file was replaced; start again with `ggufmap serve`.",
            )
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(checkpoint.path)))
        total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        with load_progress(checkpoint.name, total) as progress:
            parameters = _load(model, stream(plan, checkpoint, dtype, progress))
    init_logger("vllm.ggufmap").info(
        "ggufmap: %d tensors (%.2f GB) into %d parameters in %.2f s, every element written once",
        len(checkpoint.tensors),
        total / 1e9,
        parameters,
        time.perf_counter() - started,
    )


def _load(model: nn.Module, weights: Any) -> int:
    """Run the model's own load_weights under the ledger. The number of parameters filled; MappingError if not all."""
    import torch

    from ggufmap.errors import MappingError
    from ggufmap.target.ledger import Ledger

    before = dict(model.named_parameters())
    ledger = Ledger(before)
    with torch.no_grad(), ledger:
        model.load_weights(weights)
    after = dict(model.named_parameters())
    problems = {
        name: problem
        for name, tensor in after.items()
        if name in before and (problem := ledger.problem(name, tensor)[1]) is not None
    }
    if problems:
        shown = "\n".join(f"  {name}: {problem}" for name, problem in sorted(problems.items())[:20])
        raise MappingError(
            f"the load left {len(problems)} of {len(after)} parameters incomplete:\n{shown}",
            hint="`ggufmap audit MODEL` traces the mapping without loading; please report what it says.",
        )
    return len(after)
