"""openPangu and PLaMo 3: dense families that transformers has no class for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.conformance import BASE, HIDDEN, TOKENS, Case, Dtype
from support.tiny_shapes import Shapes, attention, below, gated, norms, outside, writer

_BLOCKS = 3

_PANGU: dict[str, Any] = {
    **BASE,
    **TOKENS["llama"],
    "architectures": ["PanguEmbeddedForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "bias": True,
    "rope_theta": 16000000.0,
}


def _pangu() -> Shapes:
    block = {**norms(HIDDEN, "input_layernorm", "post_attention_layernorm"), **attention(HIDDEN, 8, 2, 32)}
    block |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in attention(HIDDEN, 8, 2, 32).items()}
    block |= gated("mlp", HIDDEN, 512)
    found = outside(HIDDEN)
    for bid in range(_BLOCKS):
        found |= below(f"model.layers.{bid}", block)
    return found


_SLIDING = ["sliding_attention", "sliding_attention", "full_attention"]
_PLAMO3: dict[str, Any] = {
    **BASE,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "architectures": ["Plamo3ForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "head_dim": 64,
    "window_size": 16,
    "layer_types": _SLIDING,
    "sliding_window_pattern": 3,
    "interleaved_sliding_window": [16 if kind == "sliding_attention" else None for kind in _SLIDING],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
    },
}


def _plamo3() -> Shapes:
    block: Shapes = norms(HIDDEN, "pre_mixer_norm", "post_mixer_norm", "pre_mlp_norm", "post_mlp_norm")
    block |= norms(64, "mixer.q_norm", "mixer.k_norm")
    block |= {"mixer.qkv_proj.weight": (12 * 64, HIDDEN), "mixer.o_proj.weight": (HIDDEN, 8 * 64)}
    block |= {"mlp.gate_up_proj.weight": (1024, HIDDEN), "mlp.down_proj.weight": (HIDDEN, 512)}
    found = outside(HIDDEN)
    for bid in range(_BLOCKS):
        found |= below(f"model.layers.layers.{bid}", block)
    return found


def _write_plamo3(folder: Path, dtype: Dtype) -> None:
    """With PLaMo's own kind of tokenizer: a list of tokens with scores."""
    writer("plamo3", _PLAMO3, _plamo3())(folder, dtype)
    specials = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>", "<|plamo:op|>"]
    rows: list[list[Any]] = [[token, 0.0, "UNKNOWN" if i == 0 else "CONTROL"] for i, token in enumerate(specials)]
    rows += [[f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256)]
    rows += [[chr(0x3041 + i), -float(i), "NORMAL"] for i in range(_PLAMO3["vocab_size"] - len(rows))]
    (folder / "tokenizer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = {"bos_token": specials[1], "eos_token": specials[2], "pad_token": specials[3]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


CASES = (
    Case(
        "hrm_text",
        "HrmTextForCausalLM",
        {
            "num_key_value_heads": ...,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "head_dim": 32,
            "H_cycles": 2,
            "L_cycles": 3,
            "embedding_scale": 12.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
        },
        ignore={"L_bp_cycles": "training"},
    ),
    Case(
        "plamo3",
        "Plamo3ForCausalLM",
        write=_write_plamo3,
        ignore={"sliding_window_pattern": "layer_types says the same"},
        not_run="PLaMo's tokenizer is code of its repository: the tokenizers library has no such model",
    ),
    Case(
        "pangu_embedded",
        "PanguEmbeddedForCausalLM",
        write=writer("pangu_embedded", _PANGU, _pangu(), "llama"),
        tokenizer="llama",
    ),
)
