"""Derived config values of the families with experts or linear attention that nothing else shares."""

from __future__ import annotations

from collections.abc import Callable

from ggufmap.archs.base import JsonValue
from ggufmap.errors import FileError
from ggufmap.mapping.layout import Layout
from ggufmap.modeldir.derive_classic import sliding_layer_types
from ggufmap.modeldir.derive_longrope import longrope_parameters
from ggufmap.modeldir.rope import rope_parameters


def _full_or_linear(blocks: Layout) -> list[JsonValue]:
    return ["linear_attention" if bid in blocks.linear else "full_attention" for bid in blocks.trunk]


def _linear_value_head_dim(blocks: Layout) -> int:
    """The header has the size of all value heads together (conversion/qwen.py, add_ssm_inner_size)."""
    size, heads = blocks.integer("ssm.inner_size"), blocks.integer("ssm.time_step_rank")
    if heads < 1 or size % heads:
        raise FileError(f"{blocks.checkpoint.path}: ssm.inner_size {size} is not of {heads} heads")
    return size // heads


def _partial_rotary_factor(blocks: Layout) -> JsonValue:
    return rope_parameters(blocks.checkpoint).get("partial_rotary_factor")


def _mrope_parameters(blocks: Layout) -> dict[str, JsonValue]:
    """With the sections of M-RoPE, unless they are the converter's own filling (`_Qwen35MRopeMixin`), which never fits.

    Text positions are equal in all sections: vLLM's text class drops the keys again (Qwen3_5ForCausalLMConfig).
    """
    checkpoint = blocks.checkpoint
    found = rope_parameters(checkpoint)
    key = f"{checkpoint.architecture}.rope.dimension_sections"
    sections = checkpoint.metadata.integer_list(key) if key in checkpoint.metadata else []
    while sections and not sections[-1]:
        sections.pop()
    if sections and 2 * sum(sections) == blocks.integer("rope.dimension_count", 0):
        found["mrope_section"] = list(sections)
        found["mrope_interleaved"] = True
    return found


def _rope_parameters_one_base(blocks: Layout) -> dict[str, JsonValue]:
    """Full layers scale, sliding ones do not; both turn with the full ones' base (llama.cpp src/models/olmo2.cpp)."""
    full = rope_parameters(blocks.checkpoint)
    key = f"{blocks.checkpoint.architecture}.rope.freq_base_swa"
    theta = blocks.checkpoint.metadata.number(key, float(str(full["rope_theta"])))
    return {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": theta}}


_PHI_MOE_SCALE, _PHI_MOE_CONTEXT = 1.243163121016122, 131_072


def _phimoe_rope_parameters(blocks: Layout) -> dict[str, JsonValue]:
    """LongRoPE with the two scales that the config class demands and the converter drops: those of Phi-3.5-MoE.

    Other lengths get the scale that llama.cpp applies (conversion/phi.py, rope.scaling.attn_factor).
    """
    found = longrope_parameters(blocks.checkpoint)
    if found["rope_type"] != "longrope":
        return found
    key = f"{blocks.checkpoint.architecture}.rope.scaling.attn_factor"
    published = blocks.integer("context_length", 0) == _PHI_MOE_CONTEXT
    scale = _PHI_MOE_SCALE if published else blocks.checkpoint.metadata.number(key, 1.0)
    return {**found, "short_mscale": scale, "long_mscale": scale}


def _columns(tensor: str) -> Callable[[Layout], int]:
    """The size that a down projection takes in: headers from before the keys for it do not say (Qwen1.5-MoE)."""

    def of(blocks: Layout) -> int:
        sizes = {t.columns for name, t in blocks.checkpoint.tensors.items() if name.endswith(tensor)}
        if len(sizes) != 1:
            raise FileError(f"{blocks.checkpoint.path}: *.{tensor} have {sorted(sizes)} columns; one size is expected")
        return sizes.pop()

    return of


def _single_shared_expert_size(blocks: Layout) -> int:
    """What vLLM multiplies by the number of shared experts (model_executor/models/bailing_moe.py).

    From the tensors: the header has now this size, now the product (conversion/bailingmoe.py).
    """
    return _columns("ffn_down_shexp.weight")(blocks) // max(blocks.integer("expert_shared_count", 1), 1)


def _holds(tensor: str) -> Callable[[Layout], JsonValue]:
    return lambda blocks: tensor in blocks.checkpoint.tensors


DERIVED_EXPERTS: dict[str, Callable[[Layout], JsonValue]] = {
    "full_or_linear_layer_types": _full_or_linear,
    "linear_value_head_dim": _linear_value_head_dim,
    "partial_rotary_factor": _partial_rotary_factor,
    "mrope_parameters": _mrope_parameters,
    "rope_parameters_one_base": _rope_parameters_one_base,
    "sliding_3_of_4": sliding_layer_types(4),
    "no_rope_every_4th": lambda blocks: [int((bid + 1) % 4 != 0) for bid in blocks.trunk],
    "phimoe_rope_parameters": _phimoe_rope_parameters,
    "expert_size": _columns("ffn_down_exps.weight"),
    "shared_expert_size": _columns("ffn_down_shexp.weight"),
    "single_shared_expert_size": _single_shared_expert_size,
    "last_block": lambda blocks: len(blocks.trunk) - 1,
    "up_bias": _holds("blk.0.ffn_up.bias"),
    "lm_head_bias": _holds("output.bias"),
    "router_bias": lambda blocks: any(name.endswith("exp_probs_b.bias") for name in blocks.checkpoint.tensors),
}
