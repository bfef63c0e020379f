"""Gemma 3 270M by transformers, in float32: `gemma_reference.py REQUEST.json ANSWER.json`.

Nothing of ggufmap takes part. The config is written out here (Google's, of google/gemma-3-270m); the weights are read
and decoded by gguf-py, and named and shifted here. The request is {"gguf", "ids"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

ROWS = 64  # of logits at a time: a row has 262,144

LAYERS = 18
CONFIG: dict[str, Any] = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(LAYERS)],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "attention_bias": False,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "tie_word_embeddings": True,
}
TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def checkpoint_name(name: str) -> str:
    """The Hugging Face name below `model.`."""
    if not name.startswith("blk."):
        return f"{TOP[name.removesuffix('.weight')]}.weight"
    _, bid, rest = name.split(".", 2)
    return f"layers.{bid}.{BLOCK[rest.removesuffix('.weight')]}.weight"


def reference_model(path: Path) -> Gemma3ForCausalLM:
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        state[f"model.{checkpoint_name(tensor.name)}"] = values - 1 if "norm" in tensor.name else values
    model = Gemma3ForCausalLM(Gemma3TextConfig(**CONFIG)).float()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def prompt_logprobs(model: Gemma3ForCausalLM, ids: list[int]) -> dict[str, list[Any]]:
    hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, :-1]
    following = torch.tensor(ids[1:])
    answer: dict[str, list[Any]] = {"logprobs": [], "top": [], "top_logprobs": []}
    for rows, targets in zip(hidden.split(ROWS), following.split(ROWS), strict=True):
        values = torch.log_softmax(model.lm_head(rows), dim=-1)
        best, top = values.max(dim=-1)
        answer["logprobs"] += values.gather(1, targets[:, None])[:, 0].tolist()
        answer["top"] += top.tolist()
        answer["top_logprobs"] += best.tolist()
    return answer


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    answer = prompt_logprobs(reference_model(Path(request["gguf"])), request["ids"])
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
