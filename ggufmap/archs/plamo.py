"""PLaMo 3: norms before and after attention and MLP, stored without their offsets; sliding layers and full ones.

transformers 5.19 has no such class: its config is written as Llama's, with the keys that vLLM's class reads besides.

Source: llama.cpp 0c1e57098 conversion/plamo.py (Plamo3Model adds the offsets); vLLM 0.32.0
model_executor/models/plamo3.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, top
from ggufmap.archs.blocks import COMMON_CONFIG

_MINUS_ONE = "add:-1"


def _row(tensor: str, checkpoint: str, transform: str = "copy") -> Rule:
    return Rule((f"blk.{{bid}}.{tensor}",), (f"model.layers.layers.{{bid}}.{checkpoint}.weight",), transform)


PLAMO3 = Architecture(
    names=("plamo3",),
    model_type="llama",
    model_class="Plamo3ForCausalLM",
    rules=(
        top("token_embd.weight", "model.embed_tokens.weight"),
        top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
        top("output_norm.weight", "model.norm.weight", _MINUS_ONE),
        _row("attn_norm.weight", "pre_mixer_norm", _MINUS_ONE),
        _row("attn_qkv.weight", "mixer.qkv_proj"),
        _row("attn_q_norm.weight", "mixer.q_norm", _MINUS_ONE),
        _row("attn_k_norm.weight", "mixer.k_norm", _MINUS_ONE),
        _row("attn_output.weight", "mixer.o_proj"),
        # Offsets 1/5 and 1/5^1.5; the converter's names have no suffix.
        _row("post_attention_norm", "post_mixer_norm", "minus_inverse_root:25"),
        _row("ffn_norm.weight", "pre_mlp_norm", _MINUS_ONE),
        _row("ffn_up.weight", "mlp.gate_up_proj"),
        _row("ffn_down.weight", "mlp.down_proj"),
        _row("post_ffw_norm", "post_mlp_norm", "minus_inverse_root:125"),
    ),
    config=(
        *COMMON_CONFIG,
        header("window_size", "attention.sliding_window", nullable=True),
        derived("layer_types", "sliding_layer_types_8"),
        derived("interleaved_sliding_window", "window_per_layer"),
        derived("rope_parameters", "rope_parameters_by_layer_type"),
        *assumed(hidden_act="silu"),
    ),
)
