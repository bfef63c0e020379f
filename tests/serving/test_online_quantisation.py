"""vLLM's own quantisation at load (`--quantization fp8`) on top of our stream: it replaces weight loaders, keeps what
they are given until a layer is complete, and quantises it then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.harness import model_dir
from support import packed_ops
from support.converter import TinyFactory
from support.packed_vllm import PackedVllm

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def vllm() -> Iterator[PackedVllm]:
    packed_ops.fetch()
    found = PackedVllm()
    yield found
    found.close()


def test_what_vllm_quantises_are_the_dense_weights(vllm: PackedVllm, tiny: TinyFactory, tmp_path: Path) -> None:
    """vLLM 0.32: every linear layer, each once, with exactly the values of a load without quantisation."""
    folder = model_dir(tiny("llama", outtype="q8_0")[1], tmp_path / "model")
    found = vllm.ask("online", {"folder": str(folder), "quantization": "fp8_per_tensor"})
    names = sorted(name for names in found for name in names)
    assert all(len(names) == 1 for names in found)
    layers = {name.split(".")[2] for name in names}
    modules = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    assert names == sorted(f"model.layers.{layer}.{module}.weight" for layer in layers for module in modules)
    assert len(layers) > 1
