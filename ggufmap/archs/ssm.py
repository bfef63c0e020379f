"""Rows that the state-space families share: the Mamba and Mamba 2 mixers, and their config keys.

Source: llama.cpp 0c1e57098 conversion/mamba.py, gguf-py/gguf/tensor_mapping.py; vLLM 0.32.0
model_executor/layers/mamba/mamba_mixer.py and mamba_mixer2.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ggufmap.archs.base import ConfigRow, Rule, block, derived, header

_CONV_BIAS = "this model's convolution has no bias"

_CONV: tuple[Rule, ...] = (
    block("ssm_conv1d.weight", "mixer.conv1d.weight", "conv_channels"),
    block("ssm_conv1d.bias", "mixer.conv1d.bias", optional=_CONV_BIAS),
)

MAMBA2_MIXER: tuple[Rule, ...] = (
    block("ssm_in.weight", "mixer.in_proj.weight"),
    *_CONV,
    block("ssm_dt.bias", "mixer.dt_bias"),
    block("ssm_a", "mixer.A_log", "a_log_flat"),
    block("ssm_d", "mixer.D", "flat"),
    block("ssm_norm.weight", "mixer.norm.weight", "flat"),
    block("ssm_out.weight", "mixer.out_proj.weight"),
)
"""The converter gives A and D an axis of size one, and cuts the norm by group."""

MAMBA_MIXER: tuple[Rule, ...] = (
    block("ssm_in.weight", "mixer.in_proj.weight"),
    *_CONV,
    block("ssm_x.weight", "mixer.x_proj.weight"),
    block("ssm_dt.weight", "mixer.dt_proj.weight"),
    block("ssm_dt.bias", "mixer.dt_proj.bias"),
    block("ssm_a", "mixer.A_log", "a_log"),
    block("ssm_d", "mixer.D"),
    block("ssm_out.weight", "mixer.out_proj.weight"),
)


def moved(rules: Iterable[Rule], old: str, new: str) -> tuple[Rule, ...]:
    """The rows with `old` replaced by `new` in the checkpoint names."""
    return tuple(replace(rule, checkpoint=tuple(name.replace(old, new) for name in rule.checkpoint)) for rule in rules)


MAMBA2_CONFIG: tuple[ConfigRow, ...] = (
    header("mamba_n_heads", "ssm.time_step_rank"),
    derived("mamba_d_head"),
    header("mamba_d_state", "ssm.state_size"),
    header("mamba_d_conv", "ssm.conv_kernel"),
    header("mamba_n_groups", "ssm.group_count"),
    derived("mamba_expand"),
    derived("mamba_conv_bias"),
    derived("mamba_proj_bias"),
)
"""Under the names that the hybrid families give them."""
