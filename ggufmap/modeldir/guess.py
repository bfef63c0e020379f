"""The config rows that an unknown family probably has: those of many families, as far as this header says them.

Keys that a model does not know do no harm, so what families spell in several ways is written in all of them.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Source, derived, header, without
from ggufmap.archs.blocks import COMMON_CONFIG, DRAFT_CONFIG, MLA_CONFIG, MOE_CONFIG
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import GgufmapError
from ggufmap.mapping.layout import Layout, layout
from ggufmap.modeldir.derive import DERIVED

_ALWAYS: tuple[ConfigRow, ...] = (
    *COMMON_CONFIG,
    *(header(key, "attention.layer_norm_epsilon") for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_eps")),
    derived("rope_parameters"),
    derived("mlp_bias"),
    derived("use_qk_norm", "qk_norm"),
)
_EXPERTS: tuple[ConfigRow, ...] = (
    *without(MOE_CONFIG, "moe_intermediate_size"),
    *(header(key, "expert_count") for key in ("num_experts", "num_local_experts")),
    derived("moe_intermediate_size", "expert_size"),
    header("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
)


def guess_config(checkpoint: Checkpoint, architecture: Architecture) -> tuple[ConfigRow, ...]:
    """The rows that can be read or computed from this header."""
    blocks = layout(checkpoint, architecture)
    fused = "blk.0.attn_qkv.weight" in checkpoint.tensors
    rows = (*_ALWAYS, derived("attention_bias", "fused_qkv_bias" if fused else "qkv_bias"))
    if blocks.integer("expert_count", 0):
        rows += _EXPERTS
    if blocks.has("attention.kv_lora_rank"):
        rows += MLA_CONFIG
    if blocks.draft:
        rows += DRAFT_CONFIG
    return tuple(row for row in rows if _says(row, blocks))


def _says(row: ConfigRow, blocks: Layout) -> bool:
    if row.source is Source.HEADER:
        return blocks.has(str(row.value))
    try:
        return row.source is not Source.DERIVED or DERIVED[str(row.value)](blocks) is not None
    except (GgufmapError, ArithmeticError, LookupError, ValueError):  # a header may hold any numbers, or none
        return False
