"""The load format `ggufmap`: streams a GGUF file into the vLLM model and proves that every element was written."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from ggufmap.checkpoint import Checkpoint
    from ggufmap.mapping import Plan
    from ggufmap.stream import Workers


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did: parameters filled, bytes read by this rank and those of its tensors, most memory held.

    `huge`: bytes of memory, its buffers among them, that huge pages were asked for to the end.
    """

    parameters: int
    read: int
    stored: int
    peak: int
    huge: int


def make_loader_class() -> type:
    """The vLLM loader class; made on demand, so that importing this module costs nothing."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class GgufmapLoader(BaseModelLoader):  # type: ignore[misc] # vLLM is untyped here
        """Loads a model directory that ggufmap made (see `modeldir/build.py`); the draft's blocks for the draft."""

        _draft = False

        def download_model(self, model_config: Any) -> None:
            """Nothing to fetch: the manifest names a local file."""

        def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
            """Build the model, packed where the manifest says so.

            A draft comes without the head and embedding that the file does not carry.
            """
            speculative = vllm_config.speculative_config
            self._draft = speculative is not None and model_config is speculative.draft_model_config

            def create() -> nn.Module:
                with packed_layers(vllm_config, Path(model_config.model), prefix, draft=self._draft):
                    made: nn.Module = super(GgufmapLoader, self).create_model(vllm_config, model_config, prefix)
                return made

            if not self._draft:
                return create()
            shares_embedding = vllm_config.parallel_config.pipeline_parallel_size == 1
            return build_draft(create, Path(model_config.model), shares_embedding=shares_embedding)

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            """Fill `model`. Raises FileError, MappingError or UnsupportedError before or instead of garbage."""
            from ggufmap.serving.memory import limit_of

            memory = limit_of(self.load_config.model_loader_extra_config)
            load_into(model, Path(model_config.model), model_config.dtype, draft=self._draft, memory=memory)

    return GgufmapLoader


def packed_layers(vllm_config: Any, model_dir: Path, prefix: str, *, draft: bool) -> AbstractContextManager[Any]:
    """While active, vLLM builds the layers packed that the manifest of `model_dir` names for this model."""
    from ggufmap.mapping import Role
    from ggufmap.modeldir.manifest import read_manifest
    from ggufmap.target.packed_layers import holding

    packed = read_manifest(model_dir).packed.get(Role.DRAFT if draft else Role.TARGET)
    return holding(vllm_config, None if packed is None else packed.layers, prefix)


def build_draft(create: Any, model_dir: Path, *, shares_embedding: bool) -> nn.Module:
    """`create()` with the draft's head and embedding deferred where the file of `model_dir` has none.

    Pipeline stages do not share the target's embedding: there the draft keeps an own one (`shares_embedding` false).
    """
    from ggufmap.mapping import Role
    from ggufmap.target.defer import Deferral, deferral_for, deferring

    checkpoint, plan = _open(model_dir, Role.DRAFT)
    checkpoint.close()
    names = [name for a in plan.assignments if a.role == "draft" for name in a.checkpoint]
    found = deferral_for(names)
    with deferring(Deferral(found.head, found.embedding and shares_embedding)) as deferred:
        model: nn.Module = create()
    for name, saved in deferred.detach(model).items():
        _log("ggufmap: the draft's %s is not in the file: shared with the target, %.2f GB saved", name, saved / 1e9)
    return model


def load_into(
    model: nn.Module, model_dir: Path, dtype: Any, *, draft: bool = False, memory: int | None = None
) -> LoadReport:
    """Stream the GGUF file that `model_dir` stands for into `model`, quantised tensors rounded to `dtype`.

    At most `memory` bytes (1 GiB by default) are held beside the model.
    With `draft`, only the draft blocks are read (and the target's embedding, if the draft has one of its own to fill).
    Raises FileError when the file is not the one the folder was made from, MappingError when the plan has problems or
    the load did not write every element of every parameter exactly once, UsageError when `memory` is too little.
    """
    import torch

    from ggufmap.mapping import Role
    from ggufmap.serving.memory import available
    from ggufmap.serving.progress import load_progress
    from ggufmap.stream import Budget, HugePages, Lazy, Workers, stream

    started = time.perf_counter()
    role = Role.DRAFT if draft else Role.TARGET
    checkpoint, plan = _open(model_dir, role)
    with checkpoint:
        wanted = _with_shared_embedding(plan, model) if draft else {a for a in plan.assignments if a.role is role}
        total = sum(checkpoint.tensors[name].nbytes for a in wanted for name in a.tensors)
        rank, ranks = _rank()
        lazy, budget = Lazy(), Budget() if memory is None else Budget(memory)
        # Where memory is short the page cache is freed behind; other ranks may still want to read it.
        forget = ranks == 1 and total > available()
        # Online quantisation makes its parameters on the GPU when their weights come.
        on_gpu = torch.cuda.is_available() and any(p.is_cuda or p.is_meta for p in model.parameters())
        with (
            Workers(budget, background=True, pinned=on_gpu, pages=HugePages(model.parameters())) as workers,
            load_progress(f"{checkpoint.name} ({role})", total, rank, ranks) as progress,
        ):
            tensors = stream(plan, checkpoint, dtype, progress, wanted.__contains__, lazy, workers, forget=forget)
            parameters = _load(model, tensors, workers)
    if on_gpu:
        torch.cuda.empty_cache()  # what decoding there took: vLLM measures what is free before it plans its cache
    overflown = outside_float16(model)
    if overflown:
        _warn(
            "ggufmap: %d values of %d parameters are not finite in float16 (first: %s); use bfloat16 or float32",
            sum(overflown.values()),
            len(overflown),
            min(overflown),
        )
    _log(
        "ggufmap: %d tensors (%.2f of %.2f GB read) into %d %s parameters in %.2f s, every element written once",
        sum(len(a.tensors) for a in wanted),
        lazy.meter.nbytes / 1e9,
        total / 1e9,
        parameters,
        role.value,
        time.perf_counter() - started,
    )
    return LoadReport(parameters, lazy.meter.nbytes, total, budget.peak, workers.pages.asked)


def _rank() -> tuple[int, int]:
    """This process's rank and how many there are; one when nothing is distributed."""
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def outside_float16(model: nn.Module) -> dict[str, int]:
    """Float16 parameters with infinities or NaNs, as values beyond 65504 become, and how many each has."""
    import torch

    halves = {name: p for name, p in model.named_parameters() if p.dtype is torch.float16}
    counts = {name: int((~torch.isfinite(tensor)).sum()) for name, tensor in halves.items()}
    return {name: count for name, count in counts.items() if count}


def _open(model_dir: Path, role: str = "target") -> tuple[Checkpoint, Plan]:
    """The checkpoint of a model directory, proven to be the one that it was made from, and its plan for one model."""
    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.errors import FileError
    from ggufmap.mapping import resolve
    from ggufmap.mapping.infer import inferred
    from ggufmap.mapping.storage import rename_packed
    from ggufmap.modeldir.manifest import read_manifest
    from ggufmap.stream.packed import packed_view

    manifest = read_manifest(model_dir)
    checkpoint = open_checkpoint(manifest.gguf, draft=manifest.draft, mmproj=manifest.mmproj)
    try:
        if checkpoint.header_hash() != manifest.header_hash:
            raise FileError(
                f"{manifest.gguf}: its header is not the one that {model_dir} was made from",
                hint="The file was replaced; start again with `ggufmap serve`.",
            )
        name, rows = checkpoint.architecture, manifest.rows
        plan = resolve(checkpoint, inferred(name, rows) if rows else find_architecture(name, str(checkpoint.path)))
        if role not in manifest.packed:
            return checkpoint, plan
        packed = frozenset(manifest.packed[role].tensors)
        return packed_view(checkpoint, packed), rename_packed(plan, packed)
    except BaseException:
        checkpoint.close()
        raise


def _with_shared_embedding(plan: Plan, model: nn.Module) -> set[Any]:
    """The draft's assignments, and the target's embedding where the draft has one that nothing else fills."""
    draft = {a for a in plan.assignments if a.role == "draft"}
    has_own = any(name.endswith("embed_tokens.weight") for name, _ in model.named_parameters())
    if has_own and not any(name.endswith("embed_tokens.weight") for a in draft for name in a.checkpoint):
        draft |= {a for a in plan.assignments if a.checkpoint == ("model.embed_tokens.weight",)}
    return draft


def _load(model: nn.Module, weights: Any, workers: Workers) -> int:
    """Run the model's own load_weights under the ledger. The number of parameters filled; MappingError if not all."""
    import torch

    from ggufmap.errors import MappingError
    from ggufmap.stream import Settling
    from ggufmap.target.ledger import Ledger

    parameters = dict(model.named_parameters())
    ledger = Ledger(parameters, before=Settling(workers).before)
    with torch.no_grad(), _quietly(), ledger:
        model.load_weights(weights)
    after = dict(model.named_parameters())
    problems = {
        name: problem for name in parameters if (problem := ledger.problem(name, after.get(name))[1]) is not None
    }
    workers.drain()  # what is incomplete because reading failed is to be told as that
    if problems:
        shown = "\n".join(f"  {name}: {problem}" for name, problem in sorted(problems.items())[:20])
        raise MappingError(
            f"the load left {len(problems)} of {len(after)} parameters incomplete:\n{shown}",
            hint="`ggufmap audit MODEL` traces the mapping without loading; please report what it says.",
        )
    return len(after)


@contextmanager
def _quietly() -> Iterator[None]:
    """vLLM warns of each float32 norm of a bfloat16 model (v0.32.0, model_executor/models/utils.py): most of a file."""

    def other(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Attempted to load weight %s with dtype")

    log = logging.getLogger("vllm.model_executor.models.utils")
    log.addFilter(other)
    try:
        yield
    finally:
        log.removeFilter(other)


def _log(message: str, *args: object) -> None:
    from vllm.logger import init_logger

    init_logger("vllm.ggufmap").info(message, *args)


def _warn(message: str, *args: object) -> None:
    from vllm.logger import init_logger

    init_logger("vllm.ggufmap").warning(message, *args)
