"""HRM-Text: two stacks of blocks that run by turns, several times; norms without weights.

`block_count` counts the runs (a cache each). The file holds the low stack's blocks, then the high stack's.

Source: llama.cpp 0c1e57098 conversion/hrm_text.py, src/models/hrm-text.cpp; vLLM 0.32.0
model_executor/models/hrm_text.py. vLLM lets a prompt see itself in both directions, as the model was trained
(`prefix_lm`); llama.cpp does not.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, only, top
from ggufmap.archs.blocks import BASE_CONFIG


def _stack(letter: str) -> tuple[Rule, ...]:
    module = f"model.{letter}_module.layers.{{place}}."

    def row(checkpoint: str, *tensors: str) -> Rule:
        stored = tuple(f"blk.{{bid}}.{name}.weight" for name in tensors)
        return Rule(stored, (f"{module}{checkpoint}.weight",), "join_rows" if len(tensors) > 1 else "copy")

    return (
        row("attn.gqkv_proj", "attn_gate", "attn_q", "attn_k", "attn_v"),
        row("attn.o_proj", "attn_output"),
        row("mlp.gate_up_proj", "ffn_gate", "ffn_up"),
        row("mlp.down_proj", "ffn_down"),
    )


HRM_TEXT = Architecture(
    names=("hrm_text",),
    model_type="hrm_text",
    model_class="HrmTextForCausalLM",
    rules=(
        top("token_embd.weight", "model.embed_tokens.weight"),
        top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
        top("hrm.z_l_init", "model.z_L_init"),
        *only(_stack("L"), "low_stack"),
        *only(_stack("H"), "high_stack"),
    ),
    config=(
        *BASE_CONFIG,
        derived("head_dim"),
        derived("rope_parameters"),
        header("num_layers_per_stack", "hrm.layers_per_stack"),
        header("H_cycles", "hrm.h_cycles"),
        header("L_cycles", "hrm.l_cycles"),
        header("embedding_scale", "embedding_scale"),
        derived("prefix_lm"),
        *assumed(hidden_act="silu", attention_bias=False, mlp_bias=False),
    ),
)
