"""Nemotron-H, dense and mixture of experts: each block is one of Mamba 2, attention, MLP or experts.

Source: llama.cpp 0c1e57098 conversion/nemotron.py, src/models/nemotron-h.cpp; vLLM 0.32.0
model_executor/models/nemotron_h.py, nemotron_h_mtp.py. Attention has no RoPE, but the converter orders the rows of
query and key for it all the same (NemotronHModel is a GraniteHybridModel there).
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, ConfigRow, Rule, assumed, block, derived, header, only, top, weights
from ggufmap.archs.blocks import ROPE_PERMUTED_ATTENTION
from ggufmap.archs.ssm import MAMBA2_MIXER, moved

_ATTENTION = tuple(
    rule for rule in moved(ROPE_PERMUTED_ATTENTION, ".self_attn.", ".mixer.") if not rule.tensors[0].endswith(".bias")
)
_NORM = (block("attn_norm.weight", "norm.weight"),)
_MLP = weights((("ffn_up", "mixer.up_proj"), ("ffn_down", "mixer.down_proj")))
_LATENT = weights(
    (("ffn_latent_down", "mixer.fc1_latent_proj"), ("ffn_latent_up", "mixer.fc2_latent_proj")),
    optional="this model's experts work on the whole hidden state",
)
_EXPERTS: tuple[Rule, ...] = (
    *weights(
        (
            ("ffn_gate_inp", "mixer.gate"),
            ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
            ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
        )
    ),
    block("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    *(
        block(f"ffn_{part}_exps.weight", f"mixer.experts.{{eid}}.{part}_proj.weight", "experts")
        for part in ("up", "down")
    ),
    *_LATENT,
)
_TOP: tuple[Rule, ...] = (
    top("token_embd.weight", "backbone.embeddings.weight"),
    top("output_norm.weight", "backbone.norm_f.weight"),
    top("output.weight", "lm_head.weight", optional="tied to token_embd.weight"),
)


def _trunk(*rules: Rule) -> tuple[Rule, ...]:
    return only(moved(rules, "model.layers.", "backbone.layers."), "trunk")


def _mtp(layer: int, *rules: Rule) -> tuple[Rule, ...]:
    """Rows of the one MTP block, which the checkpoint keeps as two layers: attention, experts."""
    return only(moved(rules, "model.layers.{bid}.", f"mtp.layers.{layer}."), "draft")


_BODY = (
    _TOP
    + _trunk(*_NORM)
    + only(_trunk(*_ATTENTION), "softmax_attention")
    + only(_trunk(*MAMBA2_MIXER), "linear_attention", "no_feed_forward")
    + only(_trunk(*_MLP), "feed_forward", "unrouted")
)
_NEXTN = weights((("nextn.eh_proj", "eh_proj"), ("nextn.enorm", "enorm"), ("nextn.hnorm", "hnorm")))
_EXPERT_NORMS = weights((("post_attention_norm", "norm"), ("nextn.shared_head_norm", "final_layernorm")))
_DRAFT = _mtp(0, *_NORM, *_ATTENTION, *_NEXTN) + _mtp(1, *_EXPERTS, *_EXPERT_NORMS)

_CONFIG: tuple[ConfigRow, ...] = (
    derived("vocab_size"),
    header("hidden_size", "embedding_length"),
    derived("num_hidden_layers"),
    derived("hybrid_override_pattern"),
    derived("intermediate_size", "hybrid_intermediate_size"),
    header("num_attention_heads", "attention.head_count"),
    derived("num_key_value_heads", "hybrid_kv_heads"),
    derived("head_dim"),
    header("max_position_embeddings", "context_length"),
    header("layer_norm_epsilon", "attention.layer_norm_epsilon"),
    derived("tie_word_embeddings"),
    derived("bos_token_id"),
    derived("eos_token_id"),
    derived("pad_token_id"),
    header("mamba_num_heads", "ssm.time_step_rank"),
    derived("mamba_head_dim", "mamba_d_head"),
    header("ssm_state_size", "ssm.state_size"),
    header("conv_kernel", "ssm.conv_kernel"),
    header("n_groups", "ssm.group_count"),
    derived("use_conv_bias", "mamba_conv_bias"),
    derived("mamba_proj_bias"),
    *assumed(
        attention_bias=False,
        chunk_size=128,
        mamba_hidden_act="silu",
        mlp_bias=False,
        mlp_hidden_act="relu2",
        use_bias=False,
    ),
)

NEMOTRON_H = Architecture(
    names=("nemotron_h",),
    model_type="nemotron_h",
    model_class="NemotronHForCausalLM",
    rules=_BODY,
    config=_CONFIG,
)

NEMOTRON_H_MOE = Architecture(
    names=("nemotron_h_moe",),
    model_type="nemotron_h",
    model_class="NemotronHForCausalLM",
    rules=_BODY + only(_trunk(*_EXPERTS), "feed_forward", "routed") + _DRAFT,
    config=(
        *_CONFIG,
        header("n_routed_experts", "expert_count"),
        header("n_shared_experts", "expert_shared_count", fallback=1),
        header("num_experts_per_tok", "expert_used_count"),
        header("moe_intermediate_size", "expert_feed_forward_length"),
        header("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        header("moe_latent_size", "moe_latent_size", optional=True),
        header("routed_scaling_factor", "expert_weights_scale", fallback=1.0),
        derived("norm_topk_prob"),
        header("n_group", "expert_group_count", fallback=1),
        header("topk_group", "expert_group_used_count", fallback=1),
        derived("num_nextn_predict_layers"),
        *assumed(mtp_hybrid_override_pattern="*E"),
    ),
)
