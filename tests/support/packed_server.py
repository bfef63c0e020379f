"""vLLM with the packed layers' kernels on the CPU, in one process that answers in forks of itself: `packed_server.py`.

Each line of standard input is `{"call": NAME, "request": FILE, "answer": FILE, "log": FILE}`; each line of output is an
exit status. `trace` is `ggufmap.target.worker`; `layers` loads a model packed and dense and compares; `online` loads it
while vLLM quantises.
No module of the tests: vLLM keeps process-wide state.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOKENS = 7
TOP_K = 2


def main() -> None:
    import vllm.engine.arg_utils
    import vllm.model_executor.models.llama
    import vllm.model_executor.models.qwen3_moe  # noqa: F401

    import ggufmap.target.trace  # noqa: F401
    from support import packed_ops

    packed_ops.install()
    for line in sys.stdin:
        job = json.loads(line)
        status = _forked(lambda job=job: _answer(job))
        sys.__stdout__.write(f"{status}\n")
        sys.__stdout__.flush()


def _forked(work: Callable[[], None]) -> int:
    """Run `work` in a fork of this process; its exit status."""
    return _waited(_fork(work))


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
        sys.stderr.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _waited(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _answer(job: dict[str, str]) -> None:
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    if job["call"] == "trace":
        os.dup2(os.open(job["request"], os.O_RDONLY), 0)
        os.dup2(os.open(job["answer"], os.O_WRONLY | os.O_CREAT), 1)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        from ggufmap.target import worker

        worker.main()
    os.dup2(log, 1)
    request, answer = json.loads(Path(job["request"]).read_text()), Path(job["answer"])
    if job["call"] == "online":
        answer.write_text(json.dumps(_online(request)))
        return
    ranks = range(request["ranks"])
    parts = [answer.with_name(f"rank{rank}") for rank in ranks]
    children = [_fork(lambda rank=rank: _rank(request, rank, parts[rank])) for rank in ranks]
    statuses = [_waited(child) for child in children]
    if any(statuses):
        raise RuntimeError("a rank failed; what it said is above")
    answer.write_text(json.dumps([json.loads(part.read_text()) for part in parts]))


def _rank(request: dict[str, Any], rank: int, answer: Path) -> None:
    """Load both model folders as this rank; how each packed layer compares with the dense one."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    os.environ["VLLM_DIST_IDENT"] = str(rank)  # ranks that do not agree on it use gloo, and leave no shared memory
    configs = [_config(request[kind], request["ranks"]) for kind in ("packed", "dense")]
    with set_current_vllm_config(configs[0]):
        where = answer.with_name("rendezvous").as_uri()
        init_distributed_environment(request["ranks"], rank, where, local_rank=rank, backend="gloo")
        initialize_model_parallel(request["ranks"], 1)
    packed, dense = _load(configs[0], whole=True), _load(configs[1], whole=False)
    with set_current_vllm_config(configs[0]):
        answer.write_text(json.dumps(list(compared(packed, dense, rank))))


def _online(request: dict[str, Any]) -> list[list[str]]:
    """Per weight that vLLM quantises at load: the parameters of a dense load that it equals bit for bit."""
    import torch
    from vllm import _custom_ops
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    seen: list[torch.Tensor] = []

    def scaled_fp8_quant(weight: torch.Tensor, scale: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """vLLM's CPU build has no such kernel."""
        seen.append(weight.clone())
        most = torch.finfo(torch.float8_e4m3fn).max
        return (weight.float() / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale

    _custom_ops.scaled_fp8_quant = scaled_fp8_quant
    kinds = (None, request["quantization"])
    configs = [_config(request["folder"], 1, dtype="bfloat16", quantization=kind) for kind in kinds]
    with set_current_vllm_config(configs[0]):
        where = Path(request["folder"]).with_name("rendezvous").as_uri()
        init_distributed_environment(1, 0, where, local_rank=0, backend="gloo")
        initialize_model_parallel(1, 1)
    dense, quantised = (_load(config, whole=False) for config in configs)
    eighths = {name for name, p in quantised.named_parameters() if p.dtype is torch.float8_e4m3fn}
    plain = {name: p for name, p in dense.named_parameters() if name in eighths}
    assert plain
    return [[name for name, p in plain.items() if p.shape == w.shape and torch.equal(p, w)] for w in seen]


def _config(folder: str, ranks: int, **options: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",  # for the configuration; the loader is made by hand
        enforce_eager=True,
        tensor_parallel_size=ranks,
        distributed_executor_backend="mp" if ranks > 1 else None,
        **{"dtype": "float32", **options},
    ).create_engine_config()


def _load(config: Any, *, whole: bool) -> Any:
    """As vLLM does with the load format. Without what the CPU does to dense weights afterwards, unless `whole`."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    from ggufmap.serving.loader import make_loader_class

    loader = make_loader_class()(config.load_config)
    with set_current_vllm_config(config), torch.no_grad():
        with set_default_torch_dtype(config.model_config.dtype):
            model = loader.create_model(config, config.model_config)
        loader.load_weights(model, config.model_config)
        if whole:
            process_weights_after_loading(model, config.model_config, torch.device("cpu"))
        return model


def compared(packed: Any, dense: Any, rank: int) -> Iterator[dict[str, Any]]:
    """Per packed layer: whether its blocks decode to the dense weights bit for bit, and how far its output is off."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for path, layer in packed.named_modules():
            kind = type(getattr(layer, "quant_method", None)).__name__
            if kind in COMPARE:
                exact, got, want = COMPARE[kind](layer, dense.get_submodule(path), generator)
                error = float((got - want).abs().max() / want.abs().max())
                yield {"path": path, "kind": kind, "exact": exact, "error": error, "shape": list(got.shape)}


def _linear(layer: Any, plain: Any, generator: Any) -> Any:
    import torch
    from torch.nn import functional
    from vllm.distributed import tensor_model_parallel_all_reduce
    from vllm.model_executor.layers.linear import RowParallelLinear

    exact = _same(layer.qweight, _types(layer), plain.weight)
    x = torch.randn((TOKENS, plain.weight.shape[1]), generator=generator)
    want = functional.linear(x, plain.weight)
    if isinstance(layer, RowParallelLinear) and layer.reduce_results and layer.tp_size > 1:
        want = tensor_model_parallel_all_reduce(want)
    got = layer(x)
    return exact, got[0] if isinstance(got, tuple) else got, want


def _embedding(layer: Any, plain: Any, generator: Any) -> Any:
    import torch
    from torch.nn import functional
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    exact = _same(layer.qweight, _types(layer), plain.weight)
    if isinstance(layer, ParallelLMHead):
        x = torch.randn((TOKENS, plain.weight.shape[1]), generator=generator)
        return exact, layer.quant_method.apply(layer, x), functional.linear(x, plain.weight)
    ids = torch.arange(TOKENS) * 61 % plain.org_vocab_size  # the same on all ranks
    return exact, layer(ids), plain(ids)


def _experts(layer: Any, plain: Any, generator: Any) -> Any:
    import torch
    from torch.nn import functional

    exact = all(
        _same(stack, [(slice(None), rows.weight_type)], weight)
        for stacks, weights, rows in (
            (layer.w13_qweight, plain.w13_weight, layer.w13_qweight_type),
            (layer.w2_qweight, plain.w2_weight, layer.w2_qweight_type),
        )
        for stack, weight in zip(stacks, weights, strict=True)
    )
    x = torch.randn((TOKENS, plain.w2_weight.shape[1]), generator=generator)
    scores = torch.randn((TOKENS, len(plain.w2_weight)), generator=generator)
    shares, ids = scores.softmax(-1).topk(TOP_K)
    want = torch.zeros_like(x)
    for token in range(TOKENS):
        for share, expert in zip(shares[token], ids[token], strict=True):
            gate, up = functional.linear(x[token], plain.w13_weight[expert]).chunk(2)
            want[token] += share * functional.linear(functional.silu(gate) * up, plain.w2_weight[expert])
    got = layer.quant_method.apply(layer, x, shares, ids.to(torch.int32), None, None)
    return exact, got, want


def _types(layer: Any) -> list[tuple[slice, int]]:
    """Rows of a layer, and the type that they are of."""
    kinds, ids = layer.qweight_type, layer.qweight.shard_id
    if not ids:
        return [(slice(None), kinds.weight_type)]
    places = layer.qweight.shard_offset_map
    return [(slice(*places[shard][:2]), kinds.shard_weight_type[shard]) for shard in ids]


def _same(blocks: Any, types: list[tuple[slice, int]], weight: Any) -> bool:
    """Whether rows of blocks decode to the dense rows; what stands beside narrower rows is zero."""
    import torch

    from ggufmap.checkpoint.ggml_types import TYPES
    from support.packed_ops import decoded

    for rows, type in types:
        width = TYPES[type].row_bytes(weight.shape[1])
        if not torch.equal(decoded(blocks[rows, :width], type), weight[rows]) or blocks[rows, width:].any():
            return False
    return True


COMPARE = {"PackedLinearMethod": _linear, "PackedEmbeddingMethod": _embedding, "PackedMoEMethod": _experts}

if __name__ == "__main__":
    main()
