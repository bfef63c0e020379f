"""Several ranks: together they read the file about once, and each holds what vLLM's loaders cut from dense tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.config import build_config

WORKER = Path(__file__).with_name("rank_worker.py")
HIDDEN, FEED, EXPERTS, HEADS, KV_HEADS, HEAD, VOCAB = 256, 1024, 8, 8, 4, 128, 512
Q8_0 = gguf.GGMLQuantizationType.Q8_0
JOBS = {"tp2": (2, False), "tp4": (4, False), "ep2": (2, True)}


def write(path: Path) -> Path:
    """A Qwen3 MoE of one block, in Q8_0: rows of 1024 values are cut in parts of 272 bytes and more."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    numbers = {
        "block_count": 1,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "expert_feed_forward_length": FEED,
        "vocab_size": VOCAB,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"qwen3moe.{key}", value)
    writer.add_float32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen3moe.rope.freq_base", 1e6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["t", "o", "to", *(f"token{i}" for i in range(3, VOCAB))])
    writer.add_token_merges(["t o"])
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (VOCAB, HIDDEN),
        "output": (VOCAB, HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * HEAD, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * HEAD),
        "blk.0.attn_q_norm": (HEAD,),
        "blk.0.attn_k_norm": (HEAD,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate_inp": (EXPERTS, HIDDEN),
        "blk.0.ffn_gate_exps": (EXPERTS, FEED, HIDDEN),
        "blk.0.ffn_up_exps": (EXPERTS, FEED, HIDDEN),
        "blk.0.ffn_down_exps": (EXPERTS, HIDDEN, FEED),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = random.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1 or "inp" in name:
            writer.add_tensor(f"{name}.weight", values)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank of every job says."""
    folder = tmp_path_factory.mktemp("ranks")
    with open_checkpoint(write(folder / "m.gguf")) as checkpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGUFMAP_CACHE", str(folder / "cache"))
        config = build_config(checkpoint, find_architecture(checkpoint.architecture, "m"))
        model_dir = build_model_dir(checkpoint, config)
    jobs = [
        {"model_dir": str(model_dir), "ranks": ranks, "experts": experts, "out": str(folder / name)}
        for name, (ranks, experts) in JOBS.items()
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run([sys.executable, WORKER, folder], capture_output=True, text=True, check=False, timeout=500)
    found = {name: sorted(folder.glob(f"{name}.[0-9]")) for name in JOBS}
    assert [len(found[name]) for name in JOBS] == [ranks for ranks, _ in JOBS.values()], done.stderr
    return {name: [json.loads(file.read_text()) for file in files] for name, files in found.items()}


@pytest.mark.parametrize("name", JOBS)
def test_every_rank_holds_what_vllm_cuts_from_dense_tensors(
    results: dict[str, list[dict[str, Any]]], name: str
) -> None:
    """Cases F2 and F3: experts in the file's order, row and column parts; bit for bit."""
    for rank in results[name]:
        assert rank["differ"] == []
        assert rank["parameters"] > 8


@pytest.mark.parametrize("name", JOBS)
def test_the_ranks_together_read_the_file_once(results: dict[str, list[dict[str, Any]]], name: str) -> None:
    """All but what every rank holds whole: norms and routers, and with EP nothing else of the experts."""
    ranks = results[name]
    assert sum(rank["read"] for rank in ranks) <= 1.1 * ranks[0]["stored"]
