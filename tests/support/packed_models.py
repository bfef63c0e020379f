"""Small models in many ggml types, and their model directories: packed as the audit says, and dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ggufmap.mapping.plan import Plan
from ggufmap.mapping.storage import Storage
from ggufmap.modeldir.build import build_model_dir
from ggufmap.serving.preflight import preflight
from ggufmap.serving.serve import packed_manifest
from ggufmap.target.devices import World
from support import gguf_edit
from support.conformance import Case
from support.gguf_edit import Stored
from support.packed_vllm import PackedVllm

PACKED = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS")
TYPES = (*PACKED, "MXFP4")
"""Those that the plugin has kernels for, and one that it has not."""
# Wide enough that two ranks cut rows of 256-value blocks on their edges.
SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 1024}
EXPERTS = {"head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
# Layer by layer: one type each, then the mixtures of case C7.
LLAMA_MIXES: tuple[dict[str, str], ...] = (
    {"attn_q": "Q8_0", "attn_k": "Q4_0", "attn_v": "F16", "ffn_gate": "IQ4_XS", "ffn_up": "Q4_K", "ffn_down": "Q5_K"},
    {"attn_q": "Q4_K", "attn_k": "Q8_0", "attn_v": "Q6_K", "ffn_gate": "Q4_K", "ffn_up": "MXFP4", "ffn_down": "Q4_K"},
)
MOE_MIXES: tuple[dict[str, str], ...] = (
    {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q4_K", "ffn_down_exps": "Q6_K"},
    {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "IQ4_XS", "ffn_down_exps": "Q4_K"},
)
Choice = Callable[[int, str], str]


def by_layer(mixes: tuple[dict[str, str], ...], embedding: str, head: str) -> Choice:
    """Layer number and module (`attn_q`) -> type."""

    def choose(layer: int, module: str) -> str:
        if layer < 0:
            return embedding if module == "token_embd" else head
        return TYPES[layer] if layer < len(TYPES) else mixes[layer - len(TYPES)].get(module, "Q8_0")

    return choose


def quantised(source: Path, out: Path, choose: Choice) -> Path:
    """A copy of an F32 file with its matrices in the types that `choose` names."""
    file = gguf_edit.read(source)
    for name, tensor in file.tensors.items():
        parts = name.split(".")
        layer, module = (int(parts[1]), parts[2]) if parts[0] == "blk" else (-1, parts[0])
        if len(tensor.shape) > 1 and "norm" not in name and module not in ("ffn_gate_inp", "exp_probs_b"):
            file.tensors[name] = _stored(tensor.values, choose(layer, module))
    return file.write(out)


def _stored(values: Any, kind: str) -> Stored:
    return gguf_edit.stored(values, kind) if kind == "F16" else gguf_edit.quantised(values, kind)


def llama(layers: int) -> Case:
    """A dense model, query and key rows permuted."""
    return Case("llama", "LlamaForCausalLM", {**SIZES, "num_hidden_layers": layers}, tokenizer="llama3")


def moe(layers: int) -> Case:
    """A mixture of experts in every layer."""
    return Case("moe", "Qwen3MoeForCausalLM", {**SIZES, **EXPERTS, "num_hidden_layers": layers})


def corrected() -> Case:
    """Experts beside shared ones, chosen with a correction of the router's scores."""
    experts = {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 512,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": 1,
        "moe_layer_interval": 1,
    }
    sizes = {**SIZES, "num_hidden_layers": 2, **experts}
    return Case("corrected", "Ernie4_5_MoeForCausalLM", sizes, tokenizer="llama")


@dataclass(frozen=True)
class Folders:
    """The plan of a file, and the model directories that vLLM is given."""

    plan: Plan
    packed: Path
    dense: Path


def folders(vllm: PackedVllm, path: Path, cache: Path, ranks: int = 1) -> Folders:
    """Audit the file with a vLLM that has packed layers, for one of `ranks` ranks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGUFMAP_CACHE", str(cache))
        with vllm.answering():
            found = preflight(path, storage=Storage.AUTO, world=World("", ranks, False))
        with found.checkpoint:
            dense = build_model_dir(found.checkpoint, found.config)
            packed = build_model_dir(found.checkpoint, found.config, packed=packed_manifest(found.plan))
    return Folders(found.plan, packed, dense)
