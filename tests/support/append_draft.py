"""The MTP block of DeepSeek V3, which llama.cpp's converter leaves out, added to a converted file."""

from __future__ import annotations

from pathlib import Path

from support.tiny_models import TinyModel
from support.tiny_moe_specs import SPECS

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


def is_lost(name: str) -> bool:
    """Whether llama.cpp's converter leaves out the MTP block that this checkpoint has."""
    return name in SPECS and not SPECS[name].converter_keeps_mtp and bool(SPECS[name].draft_blocks)


def append(model: TinyModel, path: Path, outtype: str) -> Path:
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
