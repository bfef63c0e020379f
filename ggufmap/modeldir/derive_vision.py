"""Derived config values of models with a vision tower: of the projector's header and tensors."""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import Metadata, Tensor
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.rope import rope_parameters

_GEMMA3_POOLING = 4  # llama.cpp tools/mtmd/clip.cpp: `n_merge` of PROJECTOR_TYPE_GEMMA3


def _clip(blocks: Layout) -> Metadata:
    assert blocks.checkpoint.projector is not None  # only rows of a projector's variant come here
    return blocks.checkpoint.projector


def _tensor(blocks: Layout, name: str, dimensions: int) -> Tensor:
    tensor = blocks.checkpoint.tensors.get(name)
    if tensor is None or len(tensor.shape) != dimensions:
        found = "absent" if tensor is None else f"of shape {tensor.shape}"
        raise FileError(f"{blocks.checkpoint.projector_path}: {name} is {found}; {dimensions} dimensions are needed")
    return tensor


def _numbers(key: str) -> Callable[[Layout], JsonValue]:
    """A list of floats in their shortest decimal form (0.48145466, not 0.4814546704)."""
    return lambda blocks: [float(str(x)) for x in _clip(blocks).numbers(key)]


def _intermediate_size(blocks: Layout) -> int:
    """The other side of a block's MLP: old files have 0 in the header, and the names of its matrices swapped."""
    size = _clip(blocks).integer("clip.vision.embedding_length")
    rows, columns = _tensor(blocks, "v.blk.0.ffn_up.weight", 2).shape
    return rows if columns == size else columns


def _square_image_size(blocks: Layout) -> JsonValue:
    size = _clip(blocks).integer("clip.vision.image_size")
    return {"height": size, "width": size}


def _gemma3_image_tokens(blocks: Layout) -> int:
    """Patches of an image, pooled by a factor per side that the header has when it is not the usual one."""
    clip = _clip(blocks)
    factor = clip.integer("clip.vision.projector.scale_factor", _GEMMA3_POOLING)
    side = clip.integer("clip.vision.image_size") // clip.integer("clip.vision.patch_size") // factor
    return side * side


def _positions(blocks: Layout) -> int:
    return _tensor(blocks, "v.position_embd.weight", 2).rows


def _channels(blocks: Layout) -> int:
    return _tensor(blocks, "v.patch_embd.weight", 4).shape[1]


def _frames(blocks: Layout) -> int:
    """Frames that one patch spans: the patch embedding of each is a tensor."""
    return sum(name.startswith("v.patch_embd.weight") for name in blocks.checkpoint.projector_tensors)


def _full_attention_blocks(blocks: Layout) -> list[JsonValue]:
    """Every n-th block; the converter refuses other patterns (conversion/qwenvl.py)."""
    period = _clip(blocks).integer("clip.vision.n_wa_pattern")
    return list(range(period - 1, len(blocks.vision), period))


def _sections(blocks: Layout) -> dict[str, JsonValue]:
    """RoPE with the sections of M-RoPE. Raises FileError when they are not the rotated frequencies."""
    checkpoint = blocks.checkpoint
    found = rope_parameters(checkpoint)
    key = f"{checkpoint.architecture}.rope.dimension_sections"
    sections = [n for n in checkpoint.metadata.integer_list(key) if n]
    heads = max(blocks.integer("attention.head_count"), 1)
    half = blocks.integer("attention.key_length", blocks.integer("embedding_length") // heads) // 2
    if sum(sections) != half:
        raise FileError(f"{checkpoint.path}: {key} is {sections}, the sum of {half} frequencies is expected")
    return {**found, "mrope_section": list(sections)}


DERIVED_VISION: dict[str, Callable[[Layout], JsonValue]] = {
    "image_mean": _numbers("clip.vision.image_mean"),
    "image_std": _numbers("clip.vision.image_std"),
    "vision_intermediate_size": _intermediate_size,
    "vision_output_size": lambda blocks: _tensor(blocks, "mm.2.weight", 2).rows,
    "vision_positions": _positions,
    "vision_channels": _channels,
    "vision_frames": _frames,
    "square_image_size": _square_image_size,
    "gemma3_image_tokens": _gemma3_image_tokens,
    "full_attention_blocks": _full_attention_blocks,
    "deepstack_blocks": lambda blocks: list(blocks.deepstack),
    "sections_rope_parameters": _sections,
    "interleaved_rope_parameters": lambda blocks: {**_sections(blocks), "mrope_interleaved": True},
}
