"""vLLM layers that hold GGUF blocks: the layers of vllm-gguf-plugin, with parameters of a known size.

The plugin (0.0.5) leaves its parameters without memory until their weights come, keeps copies of them and pads them
after the load; and under tensor parallelism its loaders for fused layers give every rank the rows of rank 0, since vLLM
0.32 and 0.33 do not tell them the rank. Here the ggml types are known before (`mapping/storage.py`), so parameters are
made in their final size and vLLM's own weight loaders fill them, which the ledger can prove. The plugin computes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ggufmap.mapping.plan import Packing
from ggufmap.target import compat

PLUGIN = "vllm_gguf_plugin"
Layers = Mapping[str, Mapping[str, str]]
"""vLLM's prefix -> shard id as text ("" for the whole) -> ggml type."""


@dataclass(frozen=True)
class TypeOf:
    """What the plugin's layers read of their `qweight_type`."""

    weight_type: int
    shard_weight_type: Mapping[str | int, int]


def packing() -> Packing:
    """What this environment's packed layers can do. Imports vLLM and the plugin."""
    problem = platform_problem(compat.device_name())
    if problem is None and importlib.util.find_spec(PLUGIN) is None:
        problem = "vllm-gguf-plugin is not installed"
    if problem is not None:
        return Packing(problem=problem)
    try:
        from vllm_gguf_plugin.quantization import DEQUANT_TYPES

        config_class()
    except Exception as e:  # built for another torch or vLLM, it may fail in any way
        return Packing(problem=f"vllm-gguf-plugin {plugin_version()} does not work here: {type(e).__name__}: {e}")
    return Packing(frozenset(type.name for type in DEQUANT_TYPES))


def platform_problem(device: str) -> str | None:
    """Why there are no packed kernels on this platform of vLLM's; None where there are."""
    return None if device == "cuda" else f"no packed kernels for the platform {device}"


def plugin_version() -> str:
    """The installed plugin's version, empty when unknown."""
    try:
        return version("vllm-gguf-plugin")
    except PackageNotFoundError:
        return ""


@contextmanager
def holding(vllm_config: Any, layers: Layers | None, root: str = "") -> Iterator[None]:
    """While active, models built with `vllm_config` hold exactly `layers` packed (prefixes below `root`).

    Raises ValueError when the model was built without one of them (other than those of other pipeline stages).
    """
    if not layers:
        yield
        return
    before = vllm_config.quant_config
    made = vllm_config.quant_config = config_class()(layers, root)
    try:
        yield
    finally:
        vllm_config.quant_config = before
    if made.unseen and vllm_config.parallel_config.pipeline_parallel_size == 1:
        raise ValueError(f"vLLM built no layer {', '.join(sorted(made.unseen)[:5])} that could hold packed weights")


@cache
def config_class() -> Any:
    """The quantisation config; made on demand like all classes here, since vLLM is imported late."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

    linear, embedding, experts = _linear_method(), _embedding_method(), _moe_method()

    class PackedConfig(QuantizationConfig):  # type: ignore[misc] # vLLM is untyped here
        """Exactly the layers of these prefixes are packed; the rest is as without any config."""

        def __init__(self, layers: Layers, root: str) -> None:
            super().__init__()
            self.layers, self.root = layers, root
            self.unseen = set(layers)

        # A name of our own: model classes have special cases for files that the name "gguf" once stood for.
        get_name = classmethod(lambda cls: "ggufmap")
        get_supported_act_dtypes = classmethod(lambda cls: [torch.half, torch.bfloat16, torch.float32])
        get_min_capability = classmethod(lambda cls: 60)
        get_config_filenames: Any = staticmethod(list)
        from_config = classmethod(lambda cls, config: cls(config["layers"], config["root"]))

        def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
            """The prefixes are vLLM's own already."""

        def get_quant_method(self, layer: Any, prefix: str) -> Any:
            name = prefix.removeprefix(f"{self.root}.") if self.root else prefix
            types = self.layers.get(name)
            self.unseen.discard(name)
            if isinstance(layer, LinearBase):
                return UnquantizedLinearMethod() if types is None else linear(self, types)
            if isinstance(layer, VocabParallelEmbedding):
                return UnquantizedEmbeddingMethod() if types is None else embedding(self, types)
            if isinstance(layer, RoutedExperts) and types is not None:
                return experts(self, layer.moe_config, types)
            return None

    return PackedConfig


def _type_id(name: str) -> int:
    import gguf

    return int(gguf.GGMLQuantizationType[name])


def _row_bytes(name: str, columns: int) -> int:
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if columns % block:
        raise ValueError(f"rows of {columns} values are no whole blocks of {name} ({block})")
    return int(columns // block * size)


@cache
def _weight_class() -> Any:
    from vllm.model_executor.parameter import ModelWeightParameter

    class PackedWeight(ModelWeightParameter):  # type: ignore[misc]
        """Rows of bytes. Shards of narrower types stand at the left, zeros beside them."""

        widths: Mapping[str | int, int]

        def load_merged_column_weight(self, loaded_weight: torch.Tensor, **kwargs: Any) -> None:
            self._load_shard(loaded_weight, self.tp_rank, **kwargs)

        def load_qkv_weight(self, loaded_weight: torch.Tensor, **kwargs: Any) -> None:
            rank = self.tp_rank if kwargs["shard_id"] == "q" else self.tp_rank // kwargs["num_heads"]
            self._load_shard(loaded_weight, rank, **kwargs)

        def _load_shard(
            self, rows: torch.Tensor, rank: int, *, shard_id: Any, shard_offset: int, shard_size: int, **_: Any
        ) -> None:
            width = self.widths[shard_id]
            target = self.data.narrow(0, shard_offset, shard_size)
            if rows.shape[1] != width:
                raise ValueError(f"shard {shard_id}: rows of {rows.shape[1]} bytes, {width} expected")
            target[:, :width].copy_(rows.narrow(0, rank * shard_size, shard_size))
            if width < target.shape[1]:
                target[:, width:].zero_()

    return PackedWeight


def _weight(rows: int, width: int, loader: Any) -> Any:
    """An empty parameter on the default device, with what the plugin's layers read of it."""
    data = torch.empty((rows, width), dtype=torch.uint8)
    made = _weight_class()(data=data, input_dim=1, output_dim=0, weight_loader=loader)
    made.shard_id = []
    return made


@cache
def _linear_method() -> Any:
    from vllm.model_executor.layers.linear import QKVParallelLinear, register_weight_loader_v2_supported_method
    from vllm_gguf_plugin.quantization import GGUFLinearMethod

    @register_weight_loader_v2_supported_method
    class PackedLinearMethod(GGUFLinearMethod):  # type: ignore[misc]
        """A linear layer, fused or not, whose shards may be of several types."""

        def __init__(self, quant_config: Any, types: Mapping[str, str]) -> None:
            super().__init__(quant_config)
            self.types = types

        def create_weights(
            self,
            layer: Any,
            input_size_per_partition: int,
            output_partition_sizes: list[int],
            input_size: int,
            output_size: int,
            params_dtype: torch.dtype,
            **attributes: Any,
        ) -> None:
            self.params_dtype = params_dtype
            numbers = range(len(output_partition_sizes))
            shards: list[str | int] = ["q", "k", "v"] if isinstance(layer, QKVParallelLinear) else list(numbers)
            types = [self.types.get(str(shard)) or self.types[""] for shard in shards]
            widths = [_row_bytes(type, input_size_per_partition) for type in types]
            qweight = _weight(sum(output_partition_sizes), max(widths), attributes["weight_loader"])
            qweight.widths = dict(zip(shards, widths, strict=True))
            qweight.shard_offset_map, start = {}, 0
            for shard, size, width in zip(shards, output_partition_sizes, widths, strict=True):
                qweight.shard_offset_map[shard] = (start, start + size, width)
                start += size
            if len(set(types)) > 1:  # else the plugin takes the whole at once
                qweight.shard_id = shards
            ids = {shard: _type_id(type) for shard, type in zip(shards, types, strict=True)}
            layer.register_parameter("qweight", qweight)
            layer.qweight_type = TypeOf(_type_id(types[0]), ids)

        def process_weights_after_loading(self, layer: Any) -> None:
            """The parameters have their final form from the start."""

    return PackedLinearMethod


@cache
def _embedding_method() -> Any:
    from vllm_gguf_plugin.quantization import GGUFEmbeddingMethod

    class PackedEmbeddingMethod(GGUFEmbeddingMethod):  # type: ignore[misc]
        """An embedding or a head: one tensor of one type."""

        def __init__(self, quant_config: Any, types: Mapping[str, str]) -> None:
            super().__init__(quant_config)
            (self.type,) = set(types.values())

        def create_weights(
            self,
            layer: Any,
            input_size_per_partition: int,
            output_partition_sizes: list[int],
            input_size: int,
            output_size: int,
            params_dtype: torch.dtype,
            **attributes: Any,
        ) -> None:
            self.params_dtype = params_dtype
            rows = sum(output_partition_sizes)
            qweight = _weight(rows, _row_bytes(self.type, input_size_per_partition), attributes["weight_loader"])
            qweight.tensor_shape = (rows, input_size_per_partition)
            layer.register_parameter("qweight", qweight)
            layer.qweight_type = TypeOf(_type_id(self.type), {})

        def process_weights_after_loading(self, layer: Any) -> None:
            """The parameters have their final form from the start."""

    return PackedEmbeddingMethod


@cache
def _moe_method() -> Any:
    from vllm_gguf_plugin.quantization import GGUFMoEMethod

    class PackedMoEMethod(GGUFMoEMethod):  # type: ignore[misc]
        """A layer of experts: one type for gate and up, one for down."""

        def __init__(self, quant_config: Any, moe: Any, types: Mapping[str, str]) -> None:
            super().__init__(quant_config, moe)
            self.types = types

        def create_weights(
            self,
            layer: Any,
            num_experts: int,
            hidden_size: int,
            intermediate_size_per_partition: int,
            params_dtype: torch.dtype,
            **attributes: Any,
        ) -> None:
            both = 2 * intermediate_size_per_partition
            for name, type, rows, columns in (
                ("w13", self.types["w1"], both, hidden_size),
                ("w2", self.types["w2"], hidden_size, intermediate_size_per_partition),
            ):
                data = torch.empty((num_experts, rows, _row_bytes(type, columns)), dtype=torch.uint8)
                parameter = torch.nn.Parameter(data, requires_grad=False)
                parameter.weight_loader = attributes["weight_loader"]
                layer.register_parameter(f"{name}_qweight", parameter)
                setattr(layer, f"{name}_qweight_type", TypeOf(_type_id(type), {}))

    return PackedMoEMethod
