"""Which blocks a file has: the trunk, the draft (nextn) blocks above it, and the kinds that rows are declared for.

`block_count` includes nextn blocks, and `nextn_predict_layers` may promise what the file does not hold: drafts exist
because their tensors do (`blk.N.nextn.eh_proj.weight`), not because metadata says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ggufmap.archs import Architecture
from ggufmap.checkpoint import Checkpoint
from ggufmap.errors import FileError, UsageError
from ggufmap.mapping.plan import Warned

_MAX_BLOCKS = 10_000  # rows are expanded over them, so a header must not ask for any number; real models have 126
_INDEXED_RATIO = 4  # of DeepSeek V4's rates, the one with an indexer (vllm/models/deepseek_v4/attention.py)
_BLOCK = re.compile(r"blk\.(\d+)\.")
_EH_PROJ = re.compile(r"blk\.(\d+)\.nextn\.eh_proj\.weight")


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of one checkpoint, and the model class they belong to; `architecture` has that class's rows.

    `full_indexer` are the blocks that run their own sparse-attention indexer, `linear` those with linear attention,
    `vision` those of a multimodal projector's tower, `deepstack` those of them whose output also goes, each through a
    merger of its own, into the text model.
    """

    checkpoint: Checkpoint
    architecture: Architecture
    trunk: range
    draft: range
    leading_dense: int
    full_indexer: frozenset[int]
    linear: frozenset[int]
    model_type: str
    model_class: str
    warnings: tuple[Warned, ...] = ()
    vision: range = range(0)
    deepstack: tuple[int, ...] = ()

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of the header, by its key without the architecture prefix."""
        return self.checkpoint.metadata.integer(f"{self.checkpoint.architecture}.{key}", default)

    def has(self, key: str) -> bool:
        """Whether the header has the key (without the architecture prefix)."""
        return f"{self.checkpoint.architecture}.{key}" in self.checkpoint.metadata

    def blocks(self, kinds: tuple[str, ...]) -> list[int]:
        """The blocks that are of all the given kinds, in order."""
        everything = self.vision if "vision" in kinds else [*self.trunk, *self.draft]
        return [bid for bid in everything if all(self._is(kind, bid) for kind in kinds)]

    def _is(self, kind: str, bid: int) -> bool:
        if kind.startswith("has:"):
            return self.has(kind.removeprefix("has:"))
        if kind.startswith("lacks:"):
            return not self.has(kind.removeprefix("lacks:"))
        return KINDS[kind](self, bid)


KINDS: dict[str, Callable[[Layout, int], bool]] = {
    "trunk": lambda layout, bid: bid in layout.trunk,
    "draft": lambda layout, bid: bid in layout.draft,
    "first_draft": lambda layout, bid: bid == layout.draft.start,
    "later_draft": lambda layout, bid: bid > layout.draft.start,
    "dense": lambda layout, bid: bid < layout.leading_dense,
    "moe": lambda layout, bid: bid >= layout.leading_dense,
    "full_indexer": lambda layout, bid: bid in layout.full_indexer,
    "shared_indexer": lambda layout, bid: bid not in layout.full_indexer,
    "feed_forward": lambda layout, bid: _feed_forward(layout, bid) > 0,
    "no_feed_forward": lambda layout, bid: _feed_forward(layout, bid) == 0,
    "routed": lambda layout, bid: f"blk.{bid}.ffn_gate_inp.weight" in layout.checkpoint.tensors,
    "unrouted": lambda layout, bid: f"blk.{bid}.ffn_gate_inp.weight" not in layout.checkpoint.tensors,
    "indexed": lambda layout, bid: f"blk.{bid}.indexer.q_proj.weight" in layout.checkpoint.tensors,
    "fused_qkv": lambda layout, bid: f"blk.{bid}.attn_qkv.weight" in layout.checkpoint.tensors,
    "split_qkv": lambda layout, bid: f"blk.{bid}.attn_qkv.weight" not in layout.checkpoint.tensors,
    "linear_attention": lambda layout, bid: bid in layout.linear,
    "low_stack": lambda layout, bid: bid // layout.integer("hrm.layers_per_stack", _MAX_BLOCKS) == 0,
    "high_stack": lambda layout, bid: bid // layout.integer("hrm.layers_per_stack", _MAX_BLOCKS) == 1,
    "own_keys": lambda layout, bid: bid < len(layout.trunk) - layout.integer("attention.shared_kv_layers", 0),
    "shared_keys": lambda layout, bid: bid >= len(layout.trunk) - layout.integer("attention.shared_kv_layers", 0),
    "softmax_attention": lambda layout, bid: bid not in layout.linear,
    "compressed_keys": lambda layout, bid: _compress_ratio(layout, bid) > 1,
    "indexed_keys": lambda layout, bid: _compress_ratio(layout, bid) == _INDEXED_RATIO,
    "hash_routed": lambda layout, bid: bid < layout.integer("hash_layer_count", 0),
    "score_routed": lambda layout, bid: bid >= layout.integer("hash_layer_count", 0),
    "vision": lambda layout, bid: bid in layout.vision,
    "deepstack": lambda layout, bid: bid in layout.deepstack,
    "swapped_mlp": lambda layout, bid: _has_swapped_mlp(layout.checkpoint, bid),
    "plain_mlp": lambda layout, bid: not _has_swapped_mlp(layout.checkpoint, bid),
}
"""Kinds of block by name; `has:KEY` and `lacks:KEY` hold when the header has the key or not."""


VARIANTS: dict[str, Callable[[Checkpoint], bool]] = {
    "experts": lambda c: c.metadata.integer(f"{c.architecture}.expert_count", 0) > 0,
    "sliding_window": lambda c: c.metadata.integer(f"{c.architecture}.attention.sliding_window", 0) > 0,
    "shared_expert": lambda c: any(name.endswith("ffn_down_shexp.weight") for name in c.tensors),
    "normed_mamba": lambda c: c.metadata.boolean(f"{c.architecture}.ssm.dt_b_c_rms", False),
    "fused_qkv": lambda c: "blk.0.attn_qkv.weight" in c.tensors,
    "two_attention_norms": lambda c: "blk.0.attn_norm_2.weight" in c.tensors,
    "sarvam_tokenizer": lambda c: c.metadata.string("tokenizer.ggml.pre", "") == "sarvam-moe",
    "glm_tokenizer": lambda c: c.metadata.string("tokenizer.ggml.pre", "") in ("glm4", "chatglm-bpe"),
    "no_temperature_scale": lambda c: f"{c.architecture}.attention.temperature_scale" not in c.metadata,
    "no_router_bias": lambda c: not any(name.endswith("exp_probs_b.bias") for name in c.tensors),
}
"""Tests that tell model classes apart which share an architecture string."""


def layout(checkpoint: Checkpoint, architecture: Architecture) -> Layout:
    """Find trunk and draft blocks of `checkpoint` from its tensors, checked against the header.

    Raises FileError when the block count is absurd or the draft blocks are not the topmost ones.
    """
    declared = block_count(checkpoint)
    nextn = checkpoint.metadata.integer(f"{checkpoint.architecture}.nextn_predict_layers", 0)
    found = sorted(int(m[1]) for name in checkpoint.tensors if (m := _EH_PROJ.fullmatch(name)))
    warnings: list[Warned] = []
    if found:
        if found[0] and not any(block_of(name) == 0 for name in checkpoint.tensors):
            raise UsageError(
                f"{checkpoint.path}: holds only the draft block {found[0]}",
                hint="Give the model's own file, and this one with --draft.",
            )
        consecutive = found == list(range(found[0], found[0] + len(found)))
        if not consecutive or found[-1] + 1 < declared or found[-1] >= _MAX_BLOCKS:
            raise FileError(f"{checkpoint.path}: draft blocks {found} are not the last of {declared} blocks")
        trunk, draft = range(found[0]), range(found[0], found[-1] + 1)
        if nextn != len(draft) and checkpoint.draft_path is None:  # a separate draft is not in the trunk's header
            code, what = ("W107", "phantom MTP: ") if nextn > len(draft) else ("W106", "")
            text = f"{what}nextn_predict_layers is {nextn}, the file has {len(draft)} draft blocks"
            warnings.append(Warned(code, text))
    else:
        trunk = range(_trunk_without_draft(checkpoint, declared, nextn))
        draft = range(0)
        if nextn:
            warnings.append(
                Warned("W107", f"phantom MTP: nextn_predict_layers is {nextn}, the file has no draft tensors; no draft")
            )
    variant = next((v for v in architecture.variants if _holds(v.when, checkpoint)), architecture)
    architecture = replace(
        architecture,
        rules=variant.rules or architecture.rules,
        config=variant.config or architecture.config,
        vision=variant.vision,
    )
    warnings += _images_off(checkpoint, architecture)
    return Layout(
        checkpoint,
        architecture,
        trunk,
        draft,
        leading_dense=_leading_dense(checkpoint, len(trunk) + len(draft)),
        full_indexer=_full_indexer(checkpoint, architecture, trunk, draft),
        linear=_linear(checkpoint, architecture, trunk),
        model_type=variant.model_type,
        model_class=variant.model_class,
        warnings=tuple(warnings),
        vision=range(_vision_blocks(checkpoint) if architecture.vision else 0),
        deepstack=_deepstack(checkpoint) if architecture.vision else (),
    )


def _holds(when: str, checkpoint: Checkpoint) -> bool:
    """The test of a variant by its name; `projector:TYPE` holds when the file has a projector of that type."""
    if when.startswith("projector:"):
        return checkpoint.projector_type == when.removeprefix("projector:")
    return VARIANTS[when](checkpoint)


def _images_off(checkpoint: Checkpoint, architecture: Architecture) -> list[Warned]:
    """Why the projector is not used, if so."""
    if checkpoint.projector_note:
        return [Warned("W121", checkpoint.projector_note)]
    if checkpoint.projector is None or architecture.vision is not None:
        return []
    return [Warned("W122", f"images are off: {no_projector_rows(checkpoint)}")]


def no_projector_rows(checkpoint: Checkpoint) -> str:
    """Says that there are no rows for the checkpoint's projector."""
    return f"no rows for a projector of type {checkpoint.projector_type!r} beside {checkpoint.architecture}"


def _vision_blocks(checkpoint: Checkpoint) -> int:
    """`clip.vision.block_count`. Raises FileError when the file has fewer tensors than that."""
    assert checkpoint.projector is not None
    blocks = checkpoint.projector.integer("clip.vision.block_count")
    if not 0 < blocks <= len(checkpoint.projector_tensors):
        raise FileError(
            f"{checkpoint.projector_path}: clip.vision.block_count is {blocks}, "
            f"the file has {len(checkpoint.projector_tensors)} tensors"
        )
    return blocks


def _deepstack(checkpoint: Checkpoint) -> tuple[int, ...]:
    key = "clip.vision.is_deepstack_layers"
    if checkpoint.projector is None or key not in checkpoint.projector:
        return ()
    return tuple(bid for bid, flag in enumerate(checkpoint.projector.numbers(key)) if flag)


def _has_swapped_mlp(checkpoint: Checkpoint, bid: int) -> bool:
    """Whether a tower's `ffn_down` is what goes up: files from before llama.cpp corrected the names (clip.cpp)."""
    assert checkpoint.projector is not None
    size = checkpoint.projector.integer("clip.vision.embedding_length")
    up, down = (checkpoint.tensors.get(f"v.blk.{bid}.ffn_{part}.weight") for part in ("up", "down"))
    return up is not None and down is not None and down.columns == size != up.columns


def block_count(checkpoint: Checkpoint) -> int:
    """`block_count` of the header. Raises FileError when the file has fewer tensors than that many blocks need."""
    blocks = checkpoint.metadata.integer(f"{checkpoint.architecture}.block_count")
    # A draft-only file declares the trunk's blocks too; no block is without tensors in anything llama.cpp writes.
    most = min(max(len(checkpoint.tensors), _highest_block(checkpoint) + 1), _MAX_BLOCKS)
    if not 0 < blocks <= most:
        raise FileError(
            f"{checkpoint.path}: {checkpoint.architecture}.block_count is {blocks}, "
            f"the file has {len(checkpoint.tensors)} tensors"
        )
    return blocks


def block_of(name: str) -> int | None:
    """The block index in a tensor name, or None."""
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def _highest_block(checkpoint: Checkpoint) -> int:
    return max((bid for name in checkpoint.tensors if (bid := block_of(name)) is not None), default=-1)


def _trunk_without_draft(checkpoint: Checkpoint, declared: int, nextn: int) -> int:
    """Trunk size when no draft tensors exist: `block_count` may or may not count the promised blocks."""
    counted = declared - nextn
    return counted if nextn and 0 < counted == _highest_block(checkpoint) + 1 else declared


def _leading_dense(checkpoint: Checkpoint, blocks: int) -> int:
    meta, arch = checkpoint.metadata, checkpoint.architecture
    if not meta.integer(f"{arch}.expert_count", 0):
        return blocks
    return meta.integer(f"{arch}.leading_dense_block_count", 0)


def _feed_forward(layout: Layout, bid: int) -> int:
    """The block's MLP size: 0 where the header's per-block list says that it has none."""
    key = f"{layout.checkpoint.architecture}.feed_forward_length"
    if not layout.checkpoint.metadata.is_array(key):
        return layout.integer("feed_forward_length")
    sizes = layout.checkpoint.metadata.integer_list(key)
    return sizes[bid] if bid < len(sizes) else 0


def _compress_ratio(layout: Layout, bid: int) -> int:
    """How many positions become one in this block's keys, by the header's list; 0 where it has no more values."""
    ratios = layout.checkpoint.metadata.integer_list(f"{layout.checkpoint.architecture}.attention.compress_ratios")
    return ratios[bid] if bid < len(ratios) else 0


def _linear(checkpoint: Checkpoint, architecture: Architecture, trunk: range) -> frozenset[int]:
    """Blocks that the header calls recurrent, else every one but each n-th, else those without key-value heads."""
    recurrent = f"{checkpoint.architecture}.attention.recurrent_layers"
    if checkpoint.metadata.is_array(recurrent):
        return frozenset(bid for bid, linear in enumerate(checkpoint.metadata.numbers(recurrent)) if linear)
    key = f"{checkpoint.architecture}.full_attention_interval"
    interval = checkpoint.metadata.integer(key, architecture.full_attention_interval)
    if interval > 0:
        return frozenset(bid for bid in trunk if (bid + 1) % interval)
    key = f"{checkpoint.architecture}.attention.head_count_kv"
    if not checkpoint.metadata.is_array(key):
        return frozenset()
    return frozenset(bid for bid, heads in enumerate(checkpoint.metadata.integer_list(key)) if heads == 0)


def _full_indexer(checkpoint: Checkpoint, architecture: Architecture, trunk: range, draft: range) -> frozenset[int]:
    """Blocks with an indexer of their own: the header's types, else the family's schedule, else all; drafts always."""
    key = f"{checkpoint.architecture}.attention.indexer.types"
    sharing = architecture.indexer_sharing
    context = checkpoint.metadata.integer(f"{checkpoint.architecture}.context_length", 0)
    if checkpoint.metadata.is_array(key):
        types = [bool(x) for x in checkpoint.metadata.numbers(key)]
        if len(types) < len(trunk):
            raise FileError(f"{checkpoint.path}: {key} has {len(types)} values for {len(trunk)} blocks")
        full = [bid for bid in trunk if types[bid]]
    elif sharing is not None and context >= sharing.context:
        full = [bid for bid in trunk if max(bid - sharing.offset, 0) % sharing.period == 0]
    else:
        full = list(trunk)
    return frozenset([*full, *draft])
