"""Which layers of a vLLM model ask for a quantisation method, under which names, and what the packed ones cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import nn

from ggufmap.mapping.plan import Module


@dataclass(slots=True)
class Asked:
    """The layers that asked, in order, with the prefix they gave."""

    layers: list[tuple[nn.Module, str]] = field(default_factory=list)


def find_modules(vllm_config: Any, build: Callable[[], nn.Module], root: str = "") -> dict[str, Module]:
    """Build a model once more and note who asks for a quantisation method; by path in the model."""
    asked, before = Asked(), vllm_config.quant_config
    vllm_config.compilation_config.static_forward_context.clear()  # the names of the model that was built before
    vllm_config.quant_config = _asking_config()(asked)
    try:
        model = build()
    finally:
        vllm_config.quant_config = before
        vllm_config.compilation_config.static_forward_context.clear()
    paths = {id(module): path for path, module in model.named_modules()}
    counts = Counter(prefix for _, prefix in asked.layers)
    found: dict[str, Module] = {}
    for layer, prefix in asked.layers:
        if id(layer) in paths and (kind := _kind(layer)) is not None:
            problem = _ambiguous(counts, prefix) or (_experts_problem(layer) if kind == "experts" else None)
            found[paths[id(layer)]] = Module(kind, (_below(root, prefix),), problem)
    return _with_tied(found, asked, paths, model, root)


def _with_tied(
    found: dict[str, Module], asked: Asked, paths: dict[int, str], model: nn.Module, root: str
) -> dict[str, Module]:
    """Heads that an embedding stands in for: not in the model any more, or holding the embedding's own weight."""
    embeddings = [path for path, module in found.items() if module.kind == "embedding"]
    owners = {id(getattr(model.get_submodule(path), "weight", None)): path for path in reversed(embeddings)}
    for layer, prefix in asked.layers:
        if _kind(layer) != "embedding":
            continue
        path = paths.get(id(layer))
        owner = owners.get(id(getattr(layer, "weight", None))) if path is not None else None
        if path is None and len(embeddings) == 1:
            owner = embeddings[0]
        if owner is not None and owner != path:
            base = found[owner]
            found[owner] = Module(base.kind, (*base.prefixes, _below(root, prefix)), base.problem)
            if path is not None:
                del found[path]
    return found


def _below(root: str, prefix: str) -> str:
    return prefix.removeprefix(f"{root}.") if root else prefix


def _ambiguous(counts: Counter[str], prefix: str) -> str | None:
    return None if counts[prefix] == 1 else f"vLLM gives {counts[prefix]} layers the name {prefix!r}"


def _kind(layer: nn.Module) -> str | None:
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    kinds = ((LinearBase, "linear"), (VocabParallelEmbedding, "embedding"), (RoutedExperts, "experts"))
    return next((kind for base, kind in kinds if isinstance(layer, base)), None)


def _experts_problem(layer: Any) -> str | None:
    """What the plugin's experts (0.0.5 quantization/fused_moe.py) leave out, and this layer needs."""
    if layer.moe_config.has_bias:  # not the router's correction, which vLLM 0.33 also hangs on this layer
        return "its experts have biases"
    if layer.apply_router_weight_on_input:
        return "router weights are applied to the input"
    defaults = {"swiglu_limit": (None,), "swiglu_alpha": (None, 1.0), "swiglu_beta": (None, 0.0)}
    for name, usual in defaults.items():
        if getattr(layer, name, None) not in usual:
            return f"its activation has {name}={getattr(layer, name)}"
    return None


@cache
def _asking_config() -> Any:
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

    class AskingConfig(QuantizationConfig):  # type: ignore[misc] # vLLM is untyped here
        """Everything stays unquantised; who asks is written down."""

        def __init__(self, asked: Asked) -> None:
            super().__init__()
            self.asked = asked

        get_name = classmethod(lambda cls: "ggufmap")
        get_supported_act_dtypes: Any = classmethod(lambda cls: [])
        get_min_capability = classmethod(lambda cls: 0)
        get_config_filenames: Any = staticmethod(list)
        from_config = classmethod(lambda cls, config: cls(config["asked"]))

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            self.asked.layers.append((layer, prefix))
            if isinstance(layer, LinearBase):
                return UnquantizedLinearMethod()
            if isinstance(layer, VocabParallelEmbedding):
                return UnquantizedEmbeddingMethod()
            return None

    return AskingConfig
