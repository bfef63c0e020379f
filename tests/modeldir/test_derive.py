"""Values of config.json that are computed from header and tensor table."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.archs import find_architecture
from ggufmap.archs.base import JsonValue
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MetadataError
from ggufmap.mapping import layout
from ggufmap.modeldir.derive import DERIVED


class Derive:
    """`derive(name)` computes one value for the small model; `arch` names its family."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arch = "llama"
        self.metadata = small.llama_metadata()
        self.tensors = small.llama_tensors()

    def key(self, name: str, kind: int, value: object) -> None:
        self.metadata[f"llama.{name}"] = (kind, value)

    def __call__(self, name: str) -> JsonValue:
        metadata = {key.replace("llama.", f"{self.arch}.", 1): value for key, value in self.metadata.items()}
        metadata["general.architecture"] = (gb.STRING, self.arch)
        path = small.write_llama(self.folder / "m.gguf", metadata, self.tensors)
        with open_checkpoint(path) as checkpoint:
            return DERIVED[name](layout(checkpoint, find_architecture(self.arch, "m.gguf")))


@pytest.fixture
def derive(tmp_path: Path) -> Derive:
    return Derive(tmp_path)


def test_head_size_is_the_key_length_before_the_quotient(derive: Derive) -> None:
    assert derive("head_dim") == 16
    derive.key("attention.key_length", gb.UINT32, 40)
    assert derive("head_dim") == 40


def test_vocabulary_is_the_embedding_s_rows(derive: Derive) -> None:
    assert derive("vocab_size") == small.VOCAB
    derive.tensors = small.replaced(derive.tensors, TensorSpec("token_embd.weight", (4,)))
    with pytest.raises(FileError, match=r"token_embd\.weight is of shape \(4,\); a matrix"):
        derive("vocab_size")
    derive.tensors = small.without(derive.tensors, "token_embd.weight")
    with pytest.raises(FileError, match=r"token_embd\.weight is absent; a matrix"):
        derive("vocab_size")


def test_key_value_heads_default_to_all(derive: Derive) -> None:
    assert derive("num_key_value_heads") == 2
    del derive.metadata["llama.attention.head_count_kv"]
    assert derive("num_key_value_heads") == 4


@pytest.mark.parametrize("heads", [0, -3])
def test_absurd_head_counts_are_refused(derive: Derive, heads: int) -> None:
    derive.key("attention.head_count", gb.INT32, heads)
    with pytest.raises(FileError, match=rf"llama\.attention\.head_count is {heads}"):
        derive("head_dim")


def test_tied_is_what_the_file_has_no_head_for(derive: Derive) -> None:
    assert derive("tie_word_embeddings") is False
    derive.tensors = small.llama_tensors(tied=True)
    assert derive("tie_word_embeddings") is True


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qkv_bias", "blk.0.attn_q.bias"),
        ("output_bias", "blk.0.attn_output.bias"),
        ("mlp_bias", "blk.0.ffn_gate.bias"),
        ("qk_norm", "blk.0.attn_q_norm.weight"),
    ],
)
def test_biases_are_what_the_file_has(derive: Derive, name: str, tensor: str) -> None:
    assert derive(name) is False
    derive.tensors.append(small.tensor(tensor, 64))
    assert derive(name) is True


def test_token_ids_are_there_or_left_out(derive: Derive) -> None:
    assert derive("pad_token_id") is None
    derive.metadata["tokenizer.ggml.padding_token_id"] = (gb.UINT32, 7)
    assert derive("pad_token_id") == 7
    derive.metadata["tokenizer.ggml.padding_token_id"] = (gb.STRING, "7")
    with pytest.raises(MetadataError, match=r"padding_token_id should be an integer, found string"):
        derive("pad_token_id")


def layers(text: str) -> list[str]:
    return ["full_attention" if letter == "F" else "sliding_attention" for letter in text]


@pytest.fixture
def gemma(derive: Derive) -> Derive:
    derive.arch = "gemma3"
    derive.metadata = small.llama_metadata(7)
    derive.tensors = small.llama_tensors(7)
    derive.key("attention.sliding_window", gb.UINT32, 512)
    return derive


def test_gemma_3_has_five_sliding_layers_then_a_full_one(gemma: Derive) -> None:
    assert gemma("gemma3_layer_types") == layers("SSSSSFS")


def test_the_period_may_be_in_the_header(gemma: Derive) -> None:
    gemma.key("attention.sliding_window_pattern", gb.UINT32, 3)
    assert gemma("gemma3_layer_types") == layers("SSFSSFS")
    gemma.key("attention.sliding_window_pattern", gb.UINT32, 0)
    assert gemma("gemma3_layer_types") == layers("SSSSSSS")


def test_the_pattern_itself_may_be_in_the_header(gemma: Derive) -> None:
    pattern = [1, 0, 1, 1, 0, 0, 1]
    gemma.key("attention.sliding_window_pattern", gb.ARRAY, gb.Array(gb.BOOL, pattern))
    assert gemma("gemma3_layer_types") == layers("SFSSFFS")
    gemma.key("attention.sliding_window_pattern", gb.ARRAY, gb.Array(gb.BOOL, pattern[:-1]))
    with pytest.raises(FileError, match="sliding_window_pattern has 6 values for 7 blocks"):
        gemma("gemma3_layer_types")


def test_without_a_window_every_layer_is_full(gemma: Derive) -> None:
    gemma.key("attention.sliding_window", gb.UINT32, 0)
    assert gemma("gemma3_layer_types") == layers("FFFFFFF")
    del gemma.metadata["llama.attention.sliding_window"]
    assert gemma("gemma3_layer_types") == layers("FFFFFFF")
    assert gemma("full_layer_types") == layers("FFFFFFF")


def test_the_query_scale_of_gemma_3_is_the_head_size_but_for_27b(gemma: Derive) -> None:
    gemma.key("attention.key_length", gb.UINT32, 40)
    assert gemma("gemma3_query_scalar") == 40
    gemma.metadata |= small.llama_metadata(62)
    gemma.tensors = small.llama_tensors(62)
    assert gemma("gemma3_query_scalar") == small.HIDDEN // small.HEADS


@pytest.mark.parametrize(
    ("declared", "bias", "expected"),
    [
        (None, False, "softmax"),
        (None, True, "sigmoid"),
        (1, True, "softmax"),
        (2, False, "sigmoid"),
    ],
)
def test_scoring_is_the_header_s_word_or_the_bias_s(
    derive: Derive, declared: int | None, bias: bool, expected: str
) -> None:
    """A library's default is never asked: GLM-4.7-Flash files without the key are sigmoid."""
    if declared is not None:
        derive.key("expert_gating_func", gb.UINT32, declared)
    if bias:
        derive.tensors.append(small.tensor("blk.1.exp_probs_b.bias", 8))
    assert derive("scoring_func") == expected
    assert derive("norm_topk_prob") is (expected == "sigmoid")


def test_deepseek_v4_s_scoring_is_known_to_its_class_alone(derive: Derive) -> None:
    derive.key("expert_gating_func", gb.UINT32, 4)
    assert derive("scoring_func_v4") == "sqrtsoftplus"
    assert derive("norm_topk_prob") is False
    with pytest.raises(FileError, match="expert_gating_func is 4, known are"):
        derive("scoring_func")


def test_unknown_scoring_is_refused(derive: Derive) -> None:
    derive.key("expert_gating_func", gb.UINT32, 3)
    with pytest.raises(FileError, match="expert_gating_func is 3"):
        derive("scoring_func")


def test_normalised_weights_are_said_by_the_header(derive: Derive) -> None:
    derive.key("expert_weights_norm", gb.BOOL, 1)
    assert derive("norm_topk_prob") is True
    derive.key("expert_weights_norm", gb.BOOL, 0)
    derive.key("expert_gating_func", gb.UINT32, 2)
    assert derive("norm_topk_prob") is False


def test_latent_head_sizes_are_not_the_absorbed_ones(derive: Derive) -> None:
    derive.key("rope.dimension_count", gb.UINT32, 64)
    derive.key("attention.key_length", gb.UINT32, 576)
    derive.key("attention.value_length", gb.UINT32, 512)
    derive.key("attention.key_length_mla", gb.UINT32, 256)
    derive.key("attention.value_length_mla", gb.UINT32, 256)
    assert (derive("qk_nope_head_dim"), derive("qk_rope_head_dim"), derive("v_head_dim")) == (192, 64, 256)
    derive.key("attention.key_length_mla", gb.UINT32, 64)
    with pytest.raises(FileError, match="key length 64 leaves no part without RoPE"):
        derive("qk_nope_head_dim")


def test_compression_is_listed_for_every_block(derive: Derive) -> None:
    derive.key("attention.compress_ratios", gb.ARRAY, gb.Array(gb.INT32, [0, 4, 128]))
    assert derive("compress_ratios") == [0, 4, 128]
    derive.key("attention.compress_ratios", gb.ARRAY, gb.Array(gb.INT32, [4]))
    with pytest.raises(FileError, match=r"compress_ratios has 1 values for 2 blocks"):
        derive("compress_ratios")


def test_published_scaling_leaves_the_bases_out(derive: Derive) -> None:
    assert derive("published_rope_scaling") == {"type": "default"}
    derive.key("rope.scaling.type", gb.STRING, "yarn")
    derive.key("rope.scaling.factor", gb.FLOAT32, 16.0)
    assert derive("published_rope_scaling") == {"type": "yarn", "factor": 16.0}
