"""GLM-4.5 to 5.2 and DeepSeek V2 to V3.2: MLA, experts, indexers, MTP blocks. The checkpoints are `tiny_moe`'s."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import tiny_moe
from support.conformance import Case, Dtype

_SPARSE = "vLLM-CPU has no sparse attention backend (the sparse MLA kernels are for GPUs)"
_LATENT = "vLLM-CPU's MLA kernel takes a latent size of 512 + 64 only; this checkpoint tells its sizes apart instead"
_DROPPED = "the converter leaves DeepSeek's MTP block out (conversion/deepseek.py, skip_mtp)"


def _case(name: str, **changes: Any) -> Case:
    """A case that `tiny_moe` writes."""
    spec = tiny_moe.SPECS[name]

    def write(folder: Path, dtype: Dtype) -> None:
        tiny_moe.write(name, folder, dtype)

    return Case(name, spec.text["architectures"][0], write=write, pre=spec.pre, **changes)


def _dropped(name: str, **more: str) -> Mapping[str, Any]:
    """A case whose converter drops the MTP block."""
    blocks = tiny_moe.SPECS[name].draft_blocks
    return {
        "lost": {f"model.layers.{bid}.": _DROPPED for bid in blocks},
        "ignore": {"num_nextn_predict_layers": _DROPPED, **more},
    }


CASES = (
    _case("glm45"),
    _case("glm46"),
    _case("glm47_flash", not_run=_LATENT),
    _case("glm5", not_run=_SPARSE),
    _case(
        "glm52",
        not_run=_SPARSE,
        ignore=dict.fromkeys(("index_topk_freq", "index_skip_topk_offset"), "index_topk_pattern says it by block"),
    ),
    _case("deepseek_v2_lite", not_run=_LATENT),
    _case("deepseek_v2", not_run=_LATENT),
    _case("deepseek_v3", **_dropped("deepseek_v3"), run_dtype="bfloat16"),
    _case("deepseek_v32", not_run=_SPARSE),
)
