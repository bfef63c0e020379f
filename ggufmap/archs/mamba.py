"""Mamba, FalconMamba and Mamba 2.

Source: llama.cpp 0c1e57098 conversion/mamba.py; vLLM 0.32.0 model_executor/models/mamba.py, mamba2.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, Variant, assumed, block, derived, header, top
from ggufmap.archs.ssm import MAMBA2_MIXER, MAMBA_MIXER, moved

_TOP: tuple[Rule, ...] = (
    top("token_embd.weight", "backbone.embeddings.weight"),
    top("output_norm.weight", "backbone.norm_f.weight"),
    top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
)


def _backbone(mixer: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return _TOP + moved((block("attn_norm.weight", "norm.weight"), *mixer), "model.layers.", "backbone.layers.")


# No max_position_embeddings: the state has no length limit, and the header's context_length is a constant (2**20).
_CONFIG: tuple[ConfigRow, ...] = (
    derived("vocab_size"),
    header("hidden_size", "embedding_length"),
    derived("num_hidden_layers"),
    header("layer_norm_epsilon", "attention.layer_norm_rms_epsilon"),
    header("state_size", "ssm.state_size"),
    header("conv_kernel", "ssm.conv_kernel"),
    derived("expand", "mamba_expand"),
    derived("use_conv_bias", "mamba_conv_bias"),
    derived("use_bias", "mamba_proj_bias"),
    derived("tie_word_embeddings"),
    derived("bos_token_id"),
    derived("eos_token_id"),
    derived("pad_token_id"),
    *assumed(hidden_act="silu", residual_in_fp32=True),
)

MAMBA = Architecture(
    names=("mamba",),
    model_type="mamba",
    model_class="MambaForCausalLM",
    variants=(Variant("normed_mamba", "falcon_mamba", "FalconMambaForCausalLM"),),
    rules=_backbone(MAMBA_MIXER),
    config=(
        *_CONFIG,
        header("intermediate_size", "ssm.inner_size"),
        header("time_step_rank", "ssm.time_step_rank"),
        derived("mixer_rms_eps", "mixer_rms_eps", guess=True),
    ),
)

MAMBA2 = Architecture(
    names=("mamba2",),
    model_type="mamba2",
    model_class="Mamba2ForCausalLM",
    rules=_backbone(MAMBA2_MIXER),
    config=(
        *_CONFIG,
        header("num_heads", "ssm.time_step_rank"),
        derived("head_dim", "mamba_d_head"),
        header("n_groups", "ssm.group_count"),
        *assumed(chunk_size=256),
    ),
)
