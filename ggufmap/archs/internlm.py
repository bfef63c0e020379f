"""InternLM2 (`internlm2`): query, key and value are one tensor in the checkpoint, three (two permuted) in the file.

transformers 5.19 has no InternLM2: its config is written as Llama's, which has all keys that vLLM's class reads.

Source: llama.cpp 0c1e57098 conversion/internlm.py; vLLM 0.32.0 model_executor/models/internlm2.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, top, weights
from ggufmap.archs.blocks import COMMON_CONFIG, FINAL_NORM

_BLOCK = (
    ("attn_norm", "attention_norm"),
    ("attn_output", "attention.wo"),
    ("ffn_norm", "ffn_norm"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_down", "feed_forward.w2"),
    ("ffn_up", "feed_forward.w3"),
)

INTERNLM2 = Architecture(
    names=("internlm2",),
    model_type="llama",
    model_class="InternLM2ForCausalLM",
    rules=(
        top("token_embd.weight", "model.tok_embeddings.weight"),
        top("output.weight", "output.weight", optional="tied to token_embd.weight"),
        *FINAL_NORM,
        *weights(_BLOCK),
        Rule(
            tuple(f"blk.{{bid}}.attn_{x}.weight" for x in "qkv"),
            ("model.layers.{bid}.attention.wqkv.weight",),
            "qkv_groups_rope:attention.head_count_kv",
        ),
    ),
    config=(*COMMON_CONFIG, derived("rope_parameters"), *assumed(hidden_act="silu")),
)
