"""One measurement in its own process: `cases.py CASE MODEL SCRATCH` prints {"seconds", "cpu", "rss", "grown", ...}.

Imports, and whatever a case needs beforehand, are not in its time. `cpu` is the time on all cores together, which tells
more than the clock when the machine is busy. `rss` is the process's highest memory while the clock runs, `grown` how
much of it is above the start, both in bytes.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Result = dict[str, Any]

PIECE = 1 << 21  # values
TOUCHED = (4 << 30, 6)  # bytes at least, and times a file's size: bfloat16 values of what has four bits take four
MEMORY = 1 << 30  # bytes: the default budget
HANGS_S = 120


@contextmanager
def measured(result: Result, model: Path | None = None, *, huge: bool = False) -> Iterator[None]:
    """Time and peak memory of the block, into `result`.

    With `model`, after the machine has memory for its values, in pages of the kind that the block asks for.
    """
    if model is not None:
        _have_memory(max(TOUCHED[0], TOUCHED[1] * model.stat().st_size), huge=huge)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts over
    cpu, started = time.process_time(), time.perf_counter()
    yield
    result["seconds"] = time.perf_counter() - started
    result["cpu"] = time.process_time() - cpu
    result["rss"] = _memory("VmHWM")
    result["grown"] = result["rss"] - before


def _have_memory(nbytes: int, *, huge: bool) -> None:
    """Touch as much memory and give it back: a virtual machine's host takes what is free for some seconds.

    Getting it again takes longer than a load; whose process imports longest would pay most. Old pages of the page cache
    make room now, too.
    """
    size = min(nbytes, _kilobytes("/proc/meminfo", "MemAvailable") // 2)
    if huge:
        _touch(size, mmap.MADV_HUGEPAGE)
        size //= 4  # small ones, too: Python's own memory comes from what is left between the huge ones
    _touch(size, mmap.MADV_NOHUGEPAGE)


def _touch(nbytes: int, advice: int) -> None:
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(advice)
        for start in range(0, nbytes, mmap.PAGESIZE):
            memory[start] = 1


def _memory(key: str) -> int:
    return _kilobytes("/proc/self/status", key)


def _kilobytes(file: str, key: str) -> int:
    """What a line of a file in /proc says, in bytes."""
    lines = Path(file).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) * 1024


def header_ours(model: Path, _: Path) -> Result:
    from ggufmap.checkpoint import open_checkpoint

    result: Result = {}
    with measured(result):
        checkpoint = open_checkpoint(model)
    result["tensors"] = len(checkpoint.tensors)
    return result


def header_ours_tokens(model: Path, _: Path) -> Result:
    """As gguf.GGUFReader, which touches every string: the header and the text of every token."""
    from ggufmap.checkpoint import open_checkpoint

    result: Result = {}
    with measured(result):
        tokens = open_checkpoint(model).metadata.raw_strings("tokenizer.ggml.tokens")
    result["tokens"] = len(tokens)
    return result


def header_gguf_py(model: Path, _: Path) -> Result:
    import gguf

    result: Result = {}
    with measured(result):
        reader = gguf.GGUFReader(model)
    result["tensors"] = len(reader.tensors)
    return result


def audit_offline(model: Path, _: Path) -> Result:
    """The command, from the start of its process to the end."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "ggufmap.cli.main", "audit", "--offline", str(model)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"ggufmap audit ended with {process.returncode}")
    cpu, rss = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    return {"seconds": seconds, "cpu": cpu, "rss": rss, "grown": rss}


def load_ours(model: Path, scratch: Path) -> Result:
    """Into the real vLLM model on the CPU, in bfloat16."""
    import libgguf  # noqa: F401
    import torch

    import ggufmap.mapping.infer
    import ggufmap.mapping.storage
    import ggufmap.serving.memory
    import ggufmap.serving.progress
    import ggufmap.stream.compiled
    import ggufmap.stream.packed
    import ggufmap.target.ledger  # noqa: F401
    from ggufmap.serving.loader import load_into

    folder = _model_dir(model, scratch)
    subprocess.run([sys.executable, "-c", "import ggufmap.native as n; n.native()"], check=True)  # once for a machine
    target = _vllm_model(folder)
    result: Result = {}
    with measured(result, model, huge=True):
        report = load_into(target, folder, torch.bfloat16)
    result["huge"] = report.huge
    result["destination"] = sum(p.numel() * p.element_size() for p in target.parameters())
    return result


def _model_dir(model: Path, scratch: Path) -> Path:
    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.modeldir.build import build_model_dir
    from ggufmap.modeldir.config import build_config

    os.environ.setdefault("GGUFMAP_CACHE", str(scratch / "cache"))
    with open_checkpoint(model) as checkpoint:
        config = build_config(checkpoint, find_architecture(checkpoint.architecture, str(model)))
        return build_model_dir(checkpoint, config)


def load_safetensors(model: Path, _: Path) -> Result:
    """vLLM's own load of what `ggufmap export` made of the file: the same values, in bfloat16."""
    from vllm.config import LoadConfig, set_current_vllm_config
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    target, config = _vllm_model_and_config(exported(model))
    loader = DefaultModelLoader(LoadConfig(load_format="safetensors", use_tqdm_on_load=False))
    result: Result = {}
    with set_current_vllm_config(config), measured(result, model):
        loader.load_weights(target, config.model_config)
    result["destination"] = sum(p.numel() * p.element_size() for p in target.parameters())
    return result


def exported(model: Path) -> Path:
    """Where the file's export is."""
    return model.with_name(f"{model.stem}-bf16")


def stream_ours(model: Path, _: Path) -> Result:
    """What `ggufmap bench` does: the whole load, into one reused piece of memory, so that any size fits."""
    import torch

    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.mapping import resolve
    from ggufmap.stream.measure import measure

    result: Result = {}
    with open_checkpoint(model) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(model)))
        with measured(result, model):
            found = measure(plan, checkpoint, torch.bfloat16, MEMORY)
    return {**result, "seconds": found.load_s, "bytes": found.stored_bytes, "bound": found.bound_s}


def _vllm_model(folder: Path) -> Any:
    return _vllm_model_and_config(folder)[0]


def _vllm_model_and_config(folder: Path) -> tuple[Any, Any]:
    """vLLM's model for the folder, on the CPU, its parameters not yet filled, and its config."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    args = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, dtype="bfloat16"
    )
    config = args.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, (Path(tempfile.mkdtemp()) / "rendezvous").as_uri(), 0, "gloo")
        initialize_model_parallel(1, 1)
        with set_default_torch_dtype(torch.bfloat16), torch.device("cpu"):
            return initialize_model(vllm_config=config), config


def load_bound(model: Path, _: Path) -> Result:
    """The least that any load does: each stored byte read once, each bfloat16 value written once to new memory.

    In pieces, on as many threads as there are cores; nothing is decoded. The memory is as vLLM has it from torch.
    """
    return _bare_load(model, decoding=False, huge=False)


def load_bound_huge(model: Path, _: Path) -> Result:
    """The same with huge pages, as ggufmap asks for."""
    return _bare_load(model, decoding=False, huge=True)


def load_kernels(model: Path, _: Path) -> Result:
    """That, decoded and rounded by the kernels that ggufmap uses: what any load with them does, and no more."""
    return _bare_load(model, decoding=True, huge=True)


def _bare_load(model: Path, *, decoding: bool, huge: bool) -> Result:
    import torch

    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.stream.dequantise import decode, decodes_to, is_native
    from ggufmap.stream.pages import HugePages

    with open_checkpoint(model) as checkpoint:
        tensors = list(checkpoint.tensors.values())
    file, local, threads = os.open(model, os.O_RDONLY), threading.local(), os.cpu_count() or 1
    kept = [torch.empty(t.elements, dtype=torch.bfloat16) for t in tensors]
    straight = {t.type: not is_native(t.type) and decodes_to(t.type, torch.bfloat16) for t in tensors}

    def fill(tensor: Any, first: int, destination: torch.Tensor) -> None:
        if not hasattr(local, "raw"):
            local.raw, local.values = np.empty(4 * PIECE, np.uint8), np.zeros(PIECE, np.float32)
        raw, values = local.raw[: tensor.type.row_bytes(len(destination))], local.values[: len(destination)]
        os.preadv(file, [raw], tensor.offset + tensor.type.row_bytes(first))
        if not decoding:
            destination.copy_(torch.from_numpy(values).view(torch.bfloat16)[: len(destination)])
        elif straight[tensor.type]:
            decode(tensor.type, raw, destination.view(torch.uint16).numpy())
        else:
            if not is_native(tensor.type):
                decode(tensor.type, raw, values)
            destination.copy_(torch.from_numpy(values))

    result: Result = {}
    torch.set_num_threads(1)  # each thread has its own pieces
    with measured(result, model, huge=huge), ThreadPoolExecutor(threads) as pool:
        HugePages(kept if huge else ())
        pieces = [
            pool.submit(fill, tensor, PIECE * index, piece)
            for tensor, destination in zip(tensors, kept, strict=True)
            for index, piece in enumerate(destination.split(PIECE))
        ]
        for piece in pieces:
            piece.result()
    result["destination"] = sum(t.numel() * 2 for t in kept)
    return result


def load_transformers(model: Path, _: Path) -> Result:
    import torch
    from transformers import AutoModelForCausalLM

    result: Result = {}
    with measured(result, model):
        loaded = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.bfloat16)
    result["destination"] = sum(p.numel() * p.element_size() for p in loaded.parameters())
    return result


def load_plugin(model: Path, scratch: Path) -> Result:
    """vllm-gguf-plugin 0.0.5, as its loader does it: prepare, then every weight, packed. It writes them nowhere here,
    since its layers for packed weights need a GPU."""
    import torch
    from transformers import AutoConfig
    from vllm_gguf_plugin.weights_adapter import get_weights_adapter

    folder = _model_dir(model, scratch)
    config = SimpleNamespace(
        hf_config=AutoConfig.from_pretrained(folder),
        trust_remote_code=False,
        dtype=torch.bfloat16,
        model=str(model),
        model_weights=str(model),
        revision=None,
    )
    result: Result = {}
    with measured(result, model):
        started = time.perf_counter()
        adapter = get_weights_adapter(config.hf_config)
        adapter.prepare_loading(str(model), config)
        result["prepare"] = time.perf_counter() - started
        result["weights"] = sum(1 for _ in adapter.prepare_weights(config))
    return result


def load_llama_cpp(model: Path, _: Path) -> Result:
    """llama.cpp's own load, for its own layout: the file is mapped, repacked where its kernels want that."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 512
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = 0
    result: Result = {}
    signal.alarm(HANGS_S)  # now and then it waits for itself for ever
    with measured(result, model):
        server = xllamacpp.Server(params)
    signal.alarm(0)
    result["address"] = server.listening_address
    return result


def tokenizer_first(model: Path, scratch: Path) -> Result:
    """The whole model directory, nothing cached."""
    os.environ["GGUFMAP_CACHE"] = str(scratch / f"cold-{os.getpid()}")
    import tokenizers  # noqa: F401

    result: Result = {}
    with measured(result):
        _model_dir(model, scratch)
    return result


def tokenizer_cached(model: Path, scratch: Path) -> Result:
    _model_dir(model, scratch)
    result: Result = {}
    with measured(result):
        _model_dir(model, scratch)
    return result


def tokenizer_transformers(model: Path, _: Path) -> Result:
    from transformers import AutoTokenizer

    result: Result = {}
    with measured(result):
        AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    return result


CASES: dict[str, Callable[[Path, Path], Result]] = {
    case.__name__: case
    for case in (
        header_ours,
        header_ours_tokens,
        header_gguf_py,
        audit_offline,
        load_bound,
        load_bound_huge,
        load_kernels,
        load_ours,
        load_safetensors,
        stream_ours,
        load_llama_cpp,
        load_transformers,
        load_plugin,
        tokenizer_first,
        tokenizer_cached,
        tokenizer_transformers,
    )
}


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")  # libraries print to stdout as they please
    os.dup2(2, 1)
    result = CASES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    json.dump(result, answer)
    answer.close()
    os._exit(0)  # what is loaded needs no tidying


if __name__ == "__main__":
    main()
