"""vllm-gguf-plugin's few kernels on the CPU, for tests: decode with ggufmap's own decoder, then an ordinary product.

`install()` makes the plugin's layers run in this process and ggufmap find them. Where plugin 0.0.5 and vLLM 0.32 part
on the CPU, and what is done about it here: its kernels (`vllm_gguf_plugin.ops`) are CUDA or Triton only; `moe_sum`
and `moe_align_block_size` are ops of vLLM's CUDA build (experts, more than 64 tokens).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.assets import ROOT

PLUGIN = "vllm_gguf_plugin"
_RELEASE = "vllm-gguf-plugin==0.0.5"


def plugin_folder() -> Path | None:
    """Where the plugin is unpacked, when it is not installed; None when it is."""
    if importlib.util.find_spec(PLUGIN) is not None:
        return None
    return Path(os.environ.get("GGUFMAP_ASSETS", ROOT / ".assets")) / "peer"


def fetch() -> None:
    """Unpack the plugin where it is looked for, if it is neither there nor installed."""
    folder = plugin_folder()
    if folder is not None and not (folder / PLUGIN / "ops.py").is_file():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), _RELEASE]
        subprocess.run(command, check=True)


def environment() -> dict[str, str]:
    """What a process of its own needs to find the plugin and the tests' support."""
    paths = [str(ROOT / "tests"), str(plugin_folder() or ""), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def install() -> None:
    """Put CPU implementations in the place of the plugin's kernels, for the rest of this process."""
    folder = plugin_folder()
    if folder is not None:
        sys.path.append(str(folder))
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm_gguf_plugin import ops

    from ggufmap.target import packed_layers

    packed_layers.platform_problem = lambda device: None
    for name, function in KERNELS.items():
        assert hasattr(ops, name), f"the plugin has no {name} any more"
        setattr(ops, name, function)
    # The op that sorts tokens by expert: here the experts of each token go on as they are.
    fused_moe.moe_align_block_size = lambda topk_ids, block_size, experts: (topk_ids, None, None)


def decoded(rows: torch.Tensor, type_id: int) -> torch.Tensor:
    """Rows of blocks as float32."""
    from ggufmap.checkpoint.ggml_types import TYPES
    from ggufmap.stream.dequantise import decode

    type = TYPES[int(type_id)]
    raw = rows.detach().contiguous().numpy()
    values = np.empty((raw.shape[0], raw.shape[1] // type.bytes * type.block), dtype=np.float32)
    decode(type, raw.reshape(-1), values)
    return torch.from_numpy(values)


def _dequantize(rows: torch.Tensor, quant_type: int, m: int, n: int, dtype: torch.dtype | None) -> torch.Tensor:
    """The plugin's embedding asks for (columns, rows) and views the answer itself: the bytes say the shape."""
    return decoded(rows, quant_type).to(dtype or torch.float16).view(m, n)


def _mul_mat(rows: torch.Tensor, x: torch.Tensor, quant_type: int, row: int) -> torch.Tensor:
    weight = decoded(rows, quant_type)
    assert weight.shape[0] == row
    return (x.float() @ weight.T).to(x.dtype)


def _experts(
    x: torch.Tensor, stack: torch.Tensor, topk_ids: torch.Tensor, top_k: int, quant_type: int, row: int, tokens: int
) -> torch.Tensor:
    """Row t * k + j is token t (or the t * k + j-th row of x, when there are as many) through its j-th expert."""
    out = torch.empty((topk_ids.numel(), row), dtype=x.dtype)
    for at, expert in enumerate(topk_ids.flatten().tolist()):
        weight = decoded(stack[expert], quant_type)
        out[at] = x[at // top_k].float() @ weight.T
    return out


def _moe(x: Any, stack: Any, topk_ids: Any, _: Any, __: Any, quant_type: int, row: int, top_k: int, tokens: int) -> Any:
    return _experts(x, stack, topk_ids, top_k, quant_type, row, tokens)


def _moe_sum(parts: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(parts.sum(1))


KERNELS = {
    "ggml_dequantize": _dequantize,
    "ggml_mul_mat_vec_a8": _mul_mat,
    "ggml_mul_mat_a8": _mul_mat,
    "ggml_moe_a8": _moe,
    "ggml_moe_a8_vec": _experts,
    "ggml_moe_get_block_size": lambda quant_type: 1,
    "moe_sum": _moe_sum,
}
