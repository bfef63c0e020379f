"""The tiny checkpoints of the GLM and DeepSeek families: their configs, as published, and what to know of their files.

See `tiny_moe.py`, which writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support import tiny_tokenizers

Config = dict[str, Any]

HIDDEN, EXPERTS = 256, 8
_COMMON: Config = {
    "vocab_size": tiny_tokenizers.VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_group": 1,
    "topk_group": 1,
}
# All sizes differ, so that one taken for another shows.
_MLA: Config = {
    "q_lora_rank": 192,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 80,
}
# vLLM runs only latents of 512 + 64 on a CPU, and values of a multiple of 32.
_RUNNABLE_MLA: Config = {**_MLA, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 96}
_INDEXER: Config = {"index_n_heads": 8, "index_head_dim": 64, "index_topk": 64}
_YARN: Config = {
    "rope_theta": 20000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}
_SOFTMAX: Config = {"scoring_func": "softmax", "norm_topk_prob": False, "num_nextn_predict_layers": 0}
_BIASED: Config = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_GLM_TOKENS: Config = {"eos_token_id": 506, "pad_token_id": 506}
_DEEPSEEK_TOKENS: Config = {"bos_token_id": 510, "eos_token_id": 511}


def _theta(value: float) -> Config:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": value}}


_GLM4: Config = {
    **_GLM_TOKENS,
    "model_type": "glm4_moe",
    "architectures": ["Glm4MoeForCausalLM"],
    "head_dim": 64,
    "num_key_value_heads": 2,
    "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0, "partial_rotary_factor": 0.5},
}
_DSA: Config = {
    **_GLM_TOKENS,
    **_MLA,
    **_INDEXER,
    **_BIASED,
    **_theta(40000.0),
    "model_type": "glm_moe_dsa",
    "architectures": ["GlmMoeDsaForCausalLM"],
    "indexer_rope_interleave": True,
    "index_share_for_mtp_iteration": True,
}
_SHARING = "FFFSSSFS"
_V2: Config = {
    **_DEEPSEEK_TOKENS,
    **_MLA,
    **_SOFTMAX,
    **_YARN,
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "moe_layer_freq": 1,
    "topk_method": "greedy",
}
_V3: Config = {
    **_DEEPSEEK_TOKENS,
    **_RUNNABLE_MLA,
    **_BIASED,
    **_YARN,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "moe_layer_freq": 1,
    "n_group": 4,
    "topk_group": 2,
}
_KDA_TYPES = ("linear_attention", "linear_attention", "indexed_attention", "linear_attention")
_NEXT: Config = {
    **_GLM_TOKENS,
    **_MLA,
    **_INDEXER,
    **_BIASED,
    **_theta(50000.0),
    "model_type": "glm5_next_text",
    "num_hidden_layers": len(_KDA_TYPES),
    "qk_rope_head_dim": 0,
    "layer_types": list(_KDA_TYPES),
    "mlp_layer_types": ["dense"] + ["sparse"] * (len(_KDA_TYPES) - 1),
    "indexer_types": ["full"] * len(_KDA_TYPES),
    "indexer_rope_interleave": True,
    "index_share_for_mtp_iteration": True,
    "index_kpool": 8,
    "index_kpool_always_select_tail": True,
    "index_kpool_compress": True,
    "mla_use_nope": True,
    "mhc": True,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "swiglu_limit": 10.0,
    "linear_head_dim": 32,
    "linear_num_heads": 4,
    "linear_conv_kernel_dim": 4,
    "linear_lower_bound": -5.0,
    "linear_attn_config": {
        "kda_layers": [i for i, kind in enumerate(_KDA_TYPES) if kind == "linear_attention"],
        "full_attn_layers": [i for i, kind in enumerate(_KDA_TYPES) if kind != "linear_attention"],
        "head_dim": 32,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "moe_router_dtype": "float32",
}


@dataclass(frozen=True)
class MoeSpec:
    """One checkpoint. `own_head`: the MTP block has an embedding and a head of its own, as GLM-4.5's does."""

    architecture: str
    pre: str
    config: Config = field(default_factory=dict)
    own_head: bool = False
    converter_keeps_mtp: bool = True

    @property
    def text(self) -> Config:
        """The text model's config, complete."""
        return {**_COMMON, **self.config}

    @property
    def draft_blocks(self) -> range:
        """The MTP blocks."""
        config = self.text
        return range(config["num_hidden_layers"], config["num_hidden_layers"] + config["num_nextn_predict_layers"])


_V3_SPEC = {"architecture": "deepseek2", "pre": "deepseek-v3", "config": _V3, "converter_keeps_mtp": False}
SPECS: dict[str, MoeSpec] = {
    "glm45": MoeSpec("glm4moe", "glm4", {**_GLM4, "use_qk_norm": False}, own_head=True),
    "glm46": MoeSpec("glm4moe", "glm4", {**_GLM4, "use_qk_norm": True}),
    "glm46_echo": MoeSpec("glm4moe", "glm4", {**_GLM4, "use_qk_norm": True}),
    "glm46_near": MoeSpec("glm4moe", "glm4", {**_GLM4, "use_qk_norm": True}),
    "glm47_flash": MoeSpec(
        "deepseek2",
        "glm4",
        {
            **_GLM_TOKENS,
            **_MLA,
            **_theta(60000.0),
            "model_type": "glm4_moe_lite",
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "topk_method": "noaux_tc",  # and no scoring function: the class knows that it is sigmoid
        },
    ),
    "glm5": MoeSpec("glm-dsa", "glm4", _DSA),
    "glm52": MoeSpec(
        "glm-dsa",
        "glm4",
        {
            **_DSA,
            "num_hidden_layers": len(_SHARING),
            "first_k_dense_replace": 6,
            "max_position_embeddings": 1048576,
            "index_topk_freq": 4,
            "index_skip_topk_offset": 3,
            "indexer_types": [{"F": "full", "S": "shared"}[letter] for letter in _SHARING],
        },
    ),
    "deepseek_v2_lite": MoeSpec("deepseek2", "deepseek-llm", {**_V2, "q_lora_rank": None}),
    "deepseek_v2": MoeSpec(
        "deepseek2",
        "deepseek-llm",
        {**_V2, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    ),
    "deepseek_v3": MoeSpec(**_V3_SPEC),
    "deepseek_v3_echo": MoeSpec(**_V3_SPEC),
    "deepseek_v3_near": MoeSpec(**_V3_SPEC),
    "deepseek_v32": MoeSpec(
        "deepseek32",
        "deepseek-v3",
        {**_V3, **_MLA, **_INDEXER, "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]},
    ),
    "glm53_flash": MoeSpec("glm5-next", "glm4", _NEXT),
}
NAMES = tuple(SPECS)
FAMILIES = tuple(name for name in NAMES if not name.endswith(("_echo", "_near")))
"""One of each kind."""
