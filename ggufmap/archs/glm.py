"""GLM-4.5 to 4.7 (`glm4moe`), GLM-5, 5.1, 5.2 (`glm-dsa`) and GLM-5.3-Flash (`glm5-next`).

Source: llama.cpp 0c1e57098 conversion/glm.py, src/models/glm-dsa.cpp; vLLM 0.32.0 model_executor/models/glm4_moe.py,
deepseek_v2.py, and 0.33.0 vllm/models/deepseek_v32, vllm/models/glm5next.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, IndexerSharing, Rule, Skip, assumed, biases, block, derived, header, only
from ggufmap.archs.base import weights as rows
from ggufmap.archs.blocks import (
    ATTENTION,
    BASE_CONFIG,
    COMMON_CONFIG,
    DRAFT_CONFIG,
    EMBEDDING,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    INDEXER,
    MLA,
    MLA_CONFIG,
    MOE_CONFIG,
    NEXTN,
    PRE_NORMS,
    ROPE_FREQS,
    SHARED_EXPERTS,
)
from ggufmap.archs.deepseek import INDEXER_CONFIG, MLA_MOE, MLA_MOE_CONFIG

_ROUTER_BIAS = only((block("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),), "moe")
_MOE = only(GATED_MLP, "dense") + only(EXPERTS + SHARED_EXPERTS, "moe") + _ROUTER_BIAS
_QKV = (("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"))

GLM4_MOE = Architecture(
    names=("glm4moe",),
    model_type="glm4_moe",
    model_class="Glm4MoeForCausalLM",
    rules=EMBEDDING
    + FINAL_NORM
    + ATTENTION
    + biases(_QKV)
    + rows(
        (("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")),
        optional="only the 355B model has it",
    )
    + rows((("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")))
    + _MOE
    + NEXTN,
    config=(
        *COMMON_CONFIG,
        *MOE_CONFIG,
        *DRAFT_CONFIG,
        derived("rope_parameters"),
        derived("attention_bias", "qkv_bias"),
        derived("use_qk_norm", "qk_norm"),
        *assumed(hidden_act="silu"),
    ),
    skips=ROPE_FREQS,
)

_EXTRA_INDEXER = Skip(
    "blk.{bid}.indexer.*",
    "a phantom indexer: this block reuses the one of the last full block, the model has no place for its own",
    blocks=("shared_indexer",),
)
# The MTP head computes the indexer's top-k at draft step 0 and reuses it later; no GGUF header says so.
_SHARE_FLAG = assumed(index_share_for_mtp_iteration=True)

GLM_DSA = Architecture(
    names=("glm-dsa",),
    model_type="glm_moe_dsa",
    model_class="GlmMoeDsaForCausalLM",
    rules=MLA_MOE + _ROUTER_BIAS + only(INDEXER, "full_indexer"),
    config=(
        *MLA_MOE_CONFIG,
        *INDEXER_CONFIG,
        derived("index_topk_pattern"),
        derived("indexer_types"),
        *assumed(indexer_rope_interleave=True),
    ),
    skips=(*ROPE_FREQS, _EXTRA_INDEXER),
    bf16_only="GLM-5 activations exceed fp16's range (65504)",
    indexer_sharing=IndexerSharing(period=4, offset=2, context=1_048_576),
    draft_flags=_SHARE_FLAG,
)

KDA: tuple[Rule, ...] = (
    rows(
        (
            *_QKV,
            ("ssm_f_a", "self_attn.f_a_proj"),
            ("ssm_f_b", "self_attn.f_b_proj"),
            ("ssm_g_a", "self_attn.g_a_proj"),
            ("ssm_g_b", "self_attn.g_b_proj"),
            ("ssm_beta", "self_attn.b_proj"),
            ("ssm_norm", "self_attn.o_norm"),
            ("attn_output", "self_attn.o_proj"),
        )
    )
    + rows(tuple((f"ssm_conv1d_{x}", f"self_attn.{x}_conv1d") for x in "qkv"), "conv_channels")
    + (block("ssm_a", "self_attn.A_log", "a_log"), block("ssm_dt.bias", "self_attn.dt_bias"))
)
"""Kimi delta attention (linear) of GLM-5.3-Flash."""

_HYPER = tuple(
    block(f"hc_{part}_{value}.weight", f"hc_{part}_{value}")
    for part in ("attn", "ffn")
    for value in ("fn", "base", "scale")
)
_KPOOL = (
    block("indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"),
    block("indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate"),
)

GLM5_NEXT = Architecture(
    names=("glm5-next", "glm5next"),
    model_type="glm5_next",
    model_class="Glm5NextForCausalLM",
    text_model_type="glm5_next_text",
    rules=EMBEDDING
    + FINAL_NORM
    + PRE_NORMS
    + only(MLA, "softmax_attention")
    + only(INDEXER + _KPOOL, "softmax_attention", "full_indexer")
    + only(KDA, "linear_attention")
    + only(_HYPER, "trunk")
    + _MOE
    + NEXTN,
    config=(
        *BASE_CONFIG,
        header("num_key_value_heads", "attention.head_count"),
        *MLA_CONFIG,
        *MOE_CONFIG,
        *DRAFT_CONFIG,
        *INDEXER_CONFIG,
        derived("topk_method"),
        derived("rope_parameters", "mla_rope_parameters"),
        derived("indexer_types"),
        derived("layer_types", "linear_layer_types"),
        derived("mlp_layer_types"),
        derived("linear_attn_config"),
        header("index_kpool", "attention.indexer.kpool"),
        derived("index_kpool_always_select_tail"),
        header("hc_mult", "hyper_connection.count"),
        header("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
        header("hc_eps", "hyper_connection.epsilon"),
        derived("swiglu_limit"),
        header("linear_conv_kernel_dim", "ssm.conv_kernel"),
        header("linear_head_dim", "kda.head_dim"),
        header("linear_num_heads", "attention.head_count"),
        header("linear_lower_bound", "kda.gate_lower_bound", optional=True),
        *assumed(
            hidden_act="silu",
            attention_bias=False,
            mhc=True,
            mla_use_nope=True,
            index_kpool_compress=True,
            indexer_rope_interleave=True,
            moe_router_dtype="float32",
        ),
    ),
    bf16_only="GLM-5 activations exceed fp16's range (65504)",
    draft_flags=_SHARE_FLAG,
)
