"""Tiny random checkpoints of the GLM and DeepSeek families: MLA, experts, indexers and MTP blocks, as published.

transformers' classes have no MTP block and save experts fused, so the tensors are written from a table of names and
shapes: the real repositories' names. Values are as in `tiny_models`: random everywhere, exact in bfloat16, the same for
the same name. In `..._echo` the next token depends on the last one's embedding alone, in trunk and draft alike, so that
a draft that gets its own weights (and only then) predicts exactly what the target does. In `..._near` the blocks add a
little to that, so that it often does: how often depends on every weight of both.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from support import tiny_tokenizers
from support.tiny_models import Dtype, TinyModel

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

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


def write(name: str, folder: Path, dtype: Dtype = "float32") -> TinyModel:
    """Write the checkpoint called `name` into `folder` (made when absent) and describe it."""
    from safetensors.torch import save_file

    spec = SPECS[name]
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(name, dtype), folder / "model.safetensors", metadata={"format": "pt"})
    config = {**_document(spec), "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for file, content in _tokenizer("deepseek" if spec.pre.startswith("deepseek") else "glm").items():
        (folder / file).write_text(content)
    return TinyModel(
        name=name,
        folder=folder,
        architecture=spec.architecture,
        model_class=config["architectures"][0],
        dtype=dtype,
        pre=spec.pre,
        tied=False,
    )


def _document(spec: MoeSpec) -> Config:
    """config.json: GLM-5.3 has the text model's keys in a dictionary of their own."""
    if spec.text["model_type"] != "glm5_next_text":
        return spec.text
    outer = {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next"}
    return {**outer, "text_config": spec.text, "tie_word_embeddings": False}


def shapes(name: str) -> Shapes:
    """Every tensor of the checkpoint and its shape."""
    spec = SPECS[name]
    config = spec.text
    root = "model.language_model." if config["model_type"] == "glm5_next_text" else "model."
    vocabulary = (config["vocab_size"], HIDDEN)
    found: Shapes = {f"{root}embed_tokens.weight": vocabulary}
    for bid in range(spec.draft_blocks.stop):
        block = dict(_attention(config, bid)) | dict(_ffn(config, bid))
        block |= {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
        if bid in spec.draft_blocks:
            block |= dict.fromkeys(("enorm.weight", "hnorm.weight", "shared_head.norm.weight"), (HIDDEN,))
            block["eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
            if spec.own_head:
                block |= {"embed_tokens.weight": vocabulary, "shared_head.head.weight": vocabulary}
        elif config.get("mhc"):
            block |= dict(_hyper_connections(config))
        found |= {f"{root}layers.{bid}.{tensor}": shape for tensor, shape in block.items()}
    return found | {f"{root}norm.weight": (HIDDEN,), "lm_head.weight": vocabulary}


def _attention(c: Config, bid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    types = c.get("layer_types")
    if types is not None and bid < len(types) and types[bid] == "linear_attention":
        yield from _linear_attention(c)
    elif "kv_lora_rank" in c:
        yield from _latent_attention(c, bid)
    else:
        yield from _grouped_attention(c)


def _grouped_attention(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    size, heads, kv_heads = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        yield f"self_attn.{part}_proj.weight", (count * size, HIDDEN)
        if c["attention_bias"]:
            yield f"self_attn.{part}_proj.bias", (count * size,)
    yield "self_attn.o_proj.weight", (HIDDEN, heads * size)
    if c["use_qk_norm"]:
        yield "self_attn.q_norm.weight", (size,)
        yield "self_attn.k_norm.weight", (size,)


def _latent_attention(c: Config, bid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, rank, nope, rope, v = (
        c[key] for key in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    q_rank = c["q_lora_rank"]
    if q_rank is None:
        yield "self_attn.q_proj.weight", (heads * (nope + rope), HIDDEN)
    else:
        yield "self_attn.q_a_proj.weight", (q_rank, HIDDEN)
        yield "self_attn.q_a_layernorm.weight", (q_rank,)
        yield "self_attn.q_b_proj.weight", (heads * (nope + rope), q_rank)
    yield "self_attn.kv_a_proj_with_mqa.weight", (rank + rope, HIDDEN)
    yield "self_attn.kv_a_layernorm.weight", (rank,)
    yield "self_attn.kv_b_proj.weight", (heads * (nope + v), rank)
    yield "self_attn.o_proj.weight", (HIDDEN, heads * v)
    types = c.get("indexer_types")
    if "index_topk" in c and (types is None or bid >= len(types) or types[bid] == "full"):
        index_heads, size = c["index_n_heads"], c["index_head_dim"]
        yield "self_attn.indexer.wq_b.weight", (index_heads * size, q_rank)
        yield "self_attn.indexer.wk.weight", (size, HIDDEN)
        yield "self_attn.indexer.weights_proj.weight", (index_heads, HIDDEN)
        yield "self_attn.indexer.k_norm.weight", (size,)
        yield "self_attn.indexer.k_norm.bias", (size,)
        if "index_kpool" in c:
            yield "self_attn.indexer.index_kpool_compress_ape", (c["index_kpool"], size)
            yield "self_attn.indexer.index_kpool_compress_gate", (size, HIDDEN)


def _linear_attention(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, size = c["linear_num_heads"], c["linear_head_dim"]
    inner = heads * size
    for part in "qkv":
        yield f"self_attn.{part}_proj.weight", (inner, HIDDEN)
        yield f"self_attn.{part}_conv1d.weight", (inner, 1, c["linear_conv_kernel_dim"])
    for part in "fg":
        yield f"self_attn.{part}_a_proj.weight", (size, HIDDEN)
        yield f"self_attn.{part}_b_proj.weight", (inner, size)
    yield "self_attn.b_proj.weight", (heads, HIDDEN)
    yield "self_attn.A_log", (1, 1, heads, 1)
    yield "self_attn.dt_bias", (inner,)
    yield "self_attn.o_norm.weight", (size,)
    yield "self_attn.o_proj.weight", (HIDDEN, inner)


def _hyper_connections(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    streams = c["hc_mult"]
    for part in ("attn", "ffn"):
        yield f"hc_{part}_fn", (streams * (streams + 2), streams * HIDDEN)
        yield f"hc_{part}_base", (streams * (streams + 2),)
        yield f"hc_{part}_scale", (3,)


def _ffn(c: Config, bid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    def gated(prefix: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{prefix}.gate_proj.weight", (width, HIDDEN)
        yield f"{prefix}.up_proj.weight", (width, HIDDEN)
        yield f"{prefix}.down_proj.weight", (HIDDEN, width)

    if bid < c["first_k_dense_replace"]:
        yield from gated("mlp", c["intermediate_size"])
        return
    yield "mlp.gate.weight", (c["n_routed_experts"], HIDDEN)
    if c.get("scoring_func") != "softmax":
        yield "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
    for expert in range(c["n_routed_experts"]):
        yield from gated(f"mlp.experts.{expert}", c["moe_intermediate_size"])
    yield from gated("mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])


# Kept in float32 by the real repositories, whatever the rest is.
_FLOAT32 = ("e_score_correction_bias", "A_log", "dt_bias", "hc_", "index_kpool_")


def tensors(name: str, dtype: Dtype) -> dict[str, Any]:
    """The checkpoint: tensor name -> values."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for tensor, shape in shapes(name).items():
        values = _values(name, tensor, shape)
        if name.endswith(("_echo", "_near")):
            values = _agreeing(tensor, values, strength=0.0 if name.endswith("_echo") else _NEAR)
        exact = any(part in tensor for part in _FLOAT32)
        found[tensor] = values.to(torch.float32 if exact else getattr(torch, dtype)).contiguous()
    return found


def _values(model: str, name: str, shape: tuple[int, ...]) -> Any:
    """Random values, exact in bfloat16, of a magnitude that fits the parameter's role."""
    import torch

    # Seeded by name, so that neither the order nor the number of parameters matters.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{model}/{name}".encode()))
    if name.endswith("A_log"):
        # The converter stores -exp(A_log) in float32; between 1 and 3 the way back is exact.
        return 1 + torch.randint(0, 128, shape, generator=generator) / 64
    if len(shape) == 1:
        steps = torch.randint(-64, 65, shape, generator=generator)
        return (steps + (128 if "norm" in name else 0)) / 128
    values = torch.randn(shape, generator=generator)
    values *= 0.5 if "embed_tokens" in name or "head" in name else shape[-1] ** -0.5
    return values.to(torch.bfloat16).float()


_NEAR = 0.1


def _agreeing(name: str, values: Any, strength: float) -> Any:
    """What makes target and draft answer alike, but for what blocks of this `strength` add.

    Their answer is then a function of the last token's embedding: the draft's projection passes its (normalised)
    embedding half on, and both final norms are the same.
    """
    import torch

    if name.endswith(("o_proj.weight", "down_proj.weight")):
        return (values * strength).to(torch.bfloat16).float()
    if name.endswith("eh_proj.weight"):
        rest = (values[:, HIDDEN:] * strength).to(torch.bfloat16).float()
        return torch.cat((torch.eye(HIDDEN), rest), dim=1)
    if name.endswith("enorm.weight"):
        return torch.ones_like(values)
    if name.endswith(("model.norm.weight", "shared_head.norm.weight")):
        return _values("agreeing", "norm", tuple(values.shape))
    return values


# gguf-py's tensors, by the checkpoint's names in a block with MLA and experts. kv_b_proj becomes two.
_GGUF_TENSORS = {
    "input_layernorm.weight": "ATTN_NORM",
    "post_attention_layernorm.weight": "FFN_NORM",
    "self_attn.q_a_proj.weight": "ATTN_Q_A",
    "self_attn.q_a_layernorm.weight": "ATTN_Q_A_NORM",
    "self_attn.q_b_proj.weight": "ATTN_Q_B",
    "self_attn.kv_a_proj_with_mqa.weight": "ATTN_KV_A_MQA",
    "self_attn.kv_a_layernorm.weight": "ATTN_KV_A_NORM",
    "self_attn.o_proj.weight": "ATTN_OUT",
    "mlp.gate.weight": "FFN_GATE_INP",
    "mlp.shared_experts.gate_proj.weight": "FFN_GATE_SHEXP",
    "mlp.shared_experts.up_proj.weight": "FFN_UP_SHEXP",
    "mlp.shared_experts.down_proj.weight": "FFN_DOWN_SHEXP",
    "eh_proj.weight": "NEXTN_EH_PROJ",
    "enorm.weight": "NEXTN_ENORM",
    "hnorm.weight": "NEXTN_HNORM",
    "shared_head.norm.weight": "NEXTN_SHARED_HEAD_NORM",
}


def loses_draft(name: str) -> bool:
    """Whether llama.cpp's converter leaves out the MTP block that this checkpoint has."""
    return name in SPECS and not SPECS[name].converter_keeps_mtp and bool(SPECS[name].draft_blocks)


def append_draft(model: TinyModel, path: Path, outtype: str) -> Path:
    """Add the MTP block of a DeepSeek V3 checkpoint to its GGUF, which the converter made without; `path`.

    As llama.cpp would: the tensors' values and names as for the other blocks, the nextn names from gguf-py's table.
    """
    import numpy as np
    from safetensors.torch import load_file

    from support import gguf_edit

    config, (bid,) = SPECS[model.name].text, SPECS[model.name].draft_blocks
    prefix = f"model.layers.{bid}."
    checkpoint = load_file(model.folder / "model.safetensors")
    block = {name.removeprefix(prefix): t.float().numpy() for name, t in checkpoint.items() if name.startswith(prefix)}
    found = {f"{_gguf_name(_GGUF_TENSORS[n], bid)}.weight": block[n] for n in _GGUF_TENSORS}
    found[f"{_gguf_name('FFN_EXP_PROBS_B', bid)}.bias"] = block["mlp.gate.e_score_correction_bias"]
    for part in ("gate", "up", "down"):
        stack = [block[f"mlp.experts.{expert}.{part}_proj.weight"] for expert in range(config["n_routed_experts"])]
        found[f"{_gguf_name(f'FFN_{part.upper()}_EXP', bid)}.weight"] = np.stack(stack)
    nope = config["qk_nope_head_dim"]
    kv_b = block["self_attn.kv_b_proj.weight"].reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
    found[f"{_gguf_name('ATTN_K_B', bid)}.weight"] = kv_b[:, :nope].transpose(0, 2, 1)
    found[f"{_gguf_name('ATTN_V_B', bid)}.weight"] = kv_b[:, nope:]
    file = gguf_edit.read(path)
    for name, values in found.items():
        exact = values.ndim == 1 or name.endswith("ffn_gate_inp.weight")
        file.tensors[name] = gguf_edit.stored(values, "F32" if exact else outtype.upper())
    file.set("{arch}.block_count", bid + 1)
    file.set("{arch}.nextn_predict_layers", config["num_nextn_predict_layers"])
    return file.write_with_gguf_py(path)


def _gguf_name(tensor: str, bid: int) -> str:
    import gguf

    return str(gguf.TENSOR_NAMES[gguf.MODEL_TENSOR[tensor]]).format(bid=bid)


_GLM_SPECIALS = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>")
_DEEPSEEK_SPECIALS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")


@cache
def _tokenizer(kind: str) -> Mapping[str, str]:
    """The tokenizer's files, by name."""
    import tempfile

    specials = _GLM_SPECIALS if kind == "glm" else _DEEPSEEK_SPECIALS
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    if kind == "deepseek":
        named = {"bos_token": specials[0], "eos_token": specials[1]}
    split = tiny_tokenizers.LLAMA3_SPLIT
    tokenizer = tiny_tokenizers._byte_level(split, specials, ignore_merges=kind == "glm", nfc=False)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tiny_tokenizers._save_fast(tokenizer, folder, **named)
        path = folder / "tokenizer_config.json"
        # Real repositories say so; transformers 5 drops the key when saving.
        path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": kind == "deepseek"}, indent=1))
        return {file.name: file.read_text() for file in sorted(folder.iterdir())}
