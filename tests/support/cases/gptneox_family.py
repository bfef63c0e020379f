"""GPT-NeoX (Pythia, GPT-NeoX-20B)."""

from __future__ import annotations

from typing import Any

from support.conformance import Case


def _as_published(config: dict[str, Any]) -> dict[str, Any]:
    """With RoPE's keys as the repositories have them; the converter reads these."""
    rope = config["rope_parameters"]
    return {**config, "rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": rope["rope_theta"]}


_OLD_ROPE = dict.fromkeys(("rotary_pct", "rotary_emb_base"), "in rope_parameters, as transformers 5 has it")
_CONFIG = {
    "rms_norm_eps": ...,
    "num_key_value_heads": ...,
    "intermediate_size": 1024,
    "layer_norm_eps": 3e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}

CASES = (
    Case(
        "gptneox",
        "GPTNeoXForCausalLM",
        _CONFIG,
        pre="olmo",
        config_json=_as_published,
        raw_config=True,
        ignore=_OLD_ROPE,
    ),
    Case(
        "gptneox_sequential",
        "GPTNeoXForCausalLM",
        {**_CONFIG, "use_parallel_residual": False, "tie_word_embeddings": True},
        pre="olmo",
        config_json=_as_published,
        raw_config=True,
        ignore=_OLD_ROPE,
    ),
)
