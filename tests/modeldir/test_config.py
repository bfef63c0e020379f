"""config.json: `--hf-config` before a config.json beside the file before the header, and every conflict is said."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.converter import TinyFactory
from support.gguf_bytes import TensorSpec

from ggufmap.archs import find_architecture
from ggufmap.archs.base import derived
from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MetadataError, UnsupportedError, UsageError
from ggufmap.modeldir.config import ModelConfig, build_config, config_from_header, generation_config

# What the header of the small Llama says, as an original config would say it.
ORIGINAL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": small.VOCAB,
    "hidden_size": small.HIDDEN,
    "intermediate_size": small.FEED,
    "num_hidden_layers": 2,
    "num_attention_heads": small.HEADS,
    "num_key_value_heads": small.KV_HEADS,
    "head_dim": small.HEAD,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0},
    "hidden_act": "silu",
}


class Builder:
    """Writes a small Llama and builds its config from whatever lies around."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata: small.Metadata = small.llama_metadata()
        self.tensors = small.llama_tensors()

    def __call__(self, hf_config: Path | None = None) -> ModelConfig:
        path = small.write_llama(self.folder / "model" / "m.gguf", self.metadata, self.tensors)
        with open_checkpoint(path) as checkpoint:
            return build_config(checkpoint, find_architecture(checkpoint.architecture, "m.gguf"), hf_config)

    def given(self, values: object, where: str = "given") -> Path:
        folder = self.folder / where
        folder.mkdir(exist_ok=True)
        text = values if isinstance(values, str) else json.dumps(values)
        (folder / "config.json").write_text(text)
        return folder


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    (tmp_path / "model").mkdir()
    return Builder(tmp_path)


def codes(config: ModelConfig) -> list[str]:
    return [warning.code for warning in config.warnings]


def but(**changes: Any) -> dict[str, Any]:
    return ORIGINAL | changes


def test_the_header_alone(build: Builder) -> None:
    found = build()
    assert found.source == "header"
    assert not found.warnings
    assert {key: found.values[key] for key in ORIGINAL} == ORIGINAL
    assert isinstance(found.values["hidden_size"], int)
    assert found.assumed["dtype"] == "bfloat16"
    assert found.assumed["hidden_act"] == "silu"
    assert "hidden_size" not in found.assumed
    assert found.text is found.values


def test_a_config_that_agrees_makes_no_noise(build: Builder) -> None:
    found = build(build.given(ORIGINAL))
    assert not found.warnings
    assert found.source == str(build.folder / "given" / "config.json")
    assert {key: found.values[key] for key in ORIGINAL} == ORIGINAL


def test_given_before_sibling_before_header(build: Builder) -> None:
    build.given(but(max_position_embeddings=1, sibling_only=True), "model")
    found = build()
    assert (found.values["max_position_embeddings"], found.values["sibling_only"]) == (1, True)
    assert found.source.endswith("model/config.json")
    folder = build.given(but(max_position_embeddings=2))
    for hf_config in (folder, folder / "config.json"):
        found = build(hf_config)
        assert found.values["max_position_embeddings"] == 2
        assert "sibling_only" not in found.values
        assert found.source.endswith("given/config.json")


def test_conflicts_are_said_with_both_values_and_the_config_wins(build: Builder) -> None:
    found = build(build.given(but(num_key_value_heads=4, rms_norm_eps=1e-6)))
    assert codes(found) == ["W103", "W103"]
    by_key = {warning.message.split(":")[0]: warning.message for warning in found.warnings}
    file = build.folder / "given" / "config.json"
    assert by_key["num_key_value_heads"] == (
        f"num_key_value_heads: {file} says 4, the GGUF file 2; the config's is used"
    )
    assert "1e-06" in by_key["rms_norm_eps"] and "1e-05" in by_key["rms_norm_eps"]
    assert (found.values["num_key_value_heads"], found.values["rms_norm_eps"]) == (4, 1e-6)


@pytest.mark.parametrize(
    ("key", "said", "true"), [("tie_word_embeddings", True, False), ("vocab_size", 64, small.VOCAB)]
)
def test_what_the_tensors_prove_is_theirs_to_say(build: Builder, key: str, said: object, true: object) -> None:
    found = build(build.given(but(**{key: said})))
    assert found.values[key] == true
    (warning,) = found.warnings
    assert (warning.code, warning.message.endswith("; the file's is used")) == ("W103", True)
    assert f"says {said!r}, the GGUF file {true!r}" in warning.message


def test_a_file_without_a_head_is_tied_whatever_a_config_says(build: Builder) -> None:
    build.tensors = small.llama_tensors(tied=True)
    assert build().values["tie_word_embeddings"] is True
    found = build(build.given(but(tie_word_embeddings=False)))
    assert found.values["tie_word_embeddings"] is True
    assert codes(found) == ["W103"]


def test_another_class_is_said(build: Builder) -> None:
    found = build(build.given(but(architectures=["MistralForCausalLM"], model_type="mistral")))
    (warning,) = found.warnings
    assert "['MistralForCausalLM']" in warning.message and "['LlamaForCausalLM']" in warning.message
    assert (found.values["architectures"], found.values["model_type"]) == (["MistralForCausalLM"], "mistral")


def test_assumed_values_give_way_without_a_word(build: Builder) -> None:
    found = build(build.given(but(initializer_range=0.5, dtype="float16")))
    assert not found.warnings
    assert (found.values["initializer_range"], found.values["dtype"]) == (0.5, "float16")
    assert "dtype" not in found.assumed and "initializer_range" not in found.assumed
    assert "attention_dropout" in found.assumed


def test_keys_that_a_config_lacks_come_from_the_header(build: Builder) -> None:
    found = build(build.given({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}))
    assert not found.warnings
    assert found.values["num_hidden_layers"] == 2
    assert found.values["rope_parameters"] == ORIGINAL["rope_parameters"]


def test_a_list_of_end_tokens_with_the_file_s_among_them_is_no_conflict(build: Builder) -> None:
    build.metadata["tokenizer.ggml.eos_token_id"] = (gb.UINT32, 2)
    assert not build(build.given(but(eos_token_id=[1, 2]))).warnings
    assert codes(build(build.given(but(eos_token_id=[1, 3])))) == ["W103"]


def test_only_the_text_part_is_used(build: Builder) -> None:
    outer = {
        "architectures": ["XForConditionalGeneration"],
        "model_type": "x",
        "vision_config": {"depth": 3},
        "text_config": but(model_type="x_text", architectures=None, max_position_embeddings=99),
    }
    found = build(build.given(outer))
    assert codes(found) == ["W101", "W103"]
    assert "images are off" in found.warnings[0].message
    assert (found.values["architectures"], found.values["model_type"]) == (["LlamaForCausalLM"], "llama")
    assert found.values["max_position_embeddings"] == 99
    assert "vision_config" not in found.values and "text_config" not in found.values


@pytest.mark.parametrize("key", ["quantization_config", "auto_map"])
def test_what_belongs_to_other_weights_or_code_is_left_out(build: Builder, key: str) -> None:
    for values in (but(**{key: {"x": 1}}), {"text_config": but(**{key: {"x": 1}})}):
        found = build(build.given(values))
        assert key not in found.values
        assert [w.message for w in found.warnings if w.code == "W102"] == [
            f"{build.folder}/given/config.json: {key} is left out (weights come from the GGUF file)"
        ]


# RoPE: the old spelling and the new one say the same.

OLD = {key: value for key, value in ORIGINAL.items() if key != "rope_parameters"}
YARN: small.Metadata = {
    "llama.rope.scaling.type": (gb.STRING, "yarn"),
    "llama.rope.scaling.factor": (gb.FLOAT32, 4.0),
    "llama.rope.scaling.original_context_length": (gb.UINT32, 32),
}
YARN_CONFIG = {"factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 20000.0},
        {"rope_theta": 20000.0, "rope_scaling": None},
        {"rope_theta": 20000},
        {"rope_parameters": {"rope_theta": 20000.0}},
        {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}},
        {"rope_scaling": {"rope_type": "default"}},
    ],
)
def test_spellings_of_plain_rope(build: Builder, spelling: dict[str, Any]) -> None:
    found = build(build.given(OLD | spelling))
    assert not found.warnings
    assert found.values["rope_parameters"] == ORIGINAL["rope_parameters"]
    assert "rope_theta" not in found.values and "rope_scaling" not in found.values


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 20000.0, "rope_scaling": {"type": "yarn", **YARN_CONFIG}},
        {"rope_theta": 20000.0, "rope_scaling": {"rope_type": "yarn", **YARN_CONFIG, "beta_fast": 32}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 20000.0, **YARN_CONFIG}},
    ],
)
def test_spellings_of_yarn(build: Builder, spelling: dict[str, Any]) -> None:
    build.metadata |= YARN
    found = build(build.given(OLD | spelling))
    assert not found.warnings
    rope = found.values["rope_parameters"]
    assert isinstance(rope, dict)
    assert rope | {"beta_fast": 32} == {"rope_type": "yarn", "rope_theta": 20000.0, **YARN_CONFIG, "beta_fast": 32}


@pytest.mark.parametrize(
    "spelling",
    [{"rope_theta": 1e6}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}],
)
def test_another_base_is_said_and_used_in_either_spelling(build: Builder, spelling: dict[str, Any]) -> None:
    """transformers would take the base in `rope_parameters`, the header's, over an old `rope_theta`."""
    found = build(build.given(OLD | spelling))
    assert found.values["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}
    (warning,) = found.warnings
    assert "1000000.0" in warning.message and "20000.0" in warning.message


def test_scaling_that_the_config_does_not_have_is_said(build: Builder) -> None:
    build.metadata |= YARN
    found = build(build.given(OLD | {"rope_theta": 20000.0}))
    assert codes(found) == ["W103"]
    assert found.values["rope_parameters"] == {"rope_type": "default", "rope_theta": 20000.0}


def test_old_spelling_of_layer_types(build: Builder) -> None:
    build.metadata = {key.replace("llama.", "gemma3."): value for key, value in build.metadata.items()}
    build.metadata["general.architecture"] = (gb.STRING, "gemma3")
    build.metadata["gemma3.rope.freq_base"] = (gb.FLOAT32, 1e6)
    own = build()
    assert own.values["rope_parameters"] == {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    old = {"rope_theta": 1e6, "rope_local_base_freq": 10000.0}
    assert not [w for w in build(build.given(old)).warnings if w.message.startswith("rope")]
    scaled = build(build.given(old | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}))
    assert scaled.values["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    local = build(build.given({"rope_local_base_freq": 5.0}))
    assert local.values["rope_parameters"] == {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5.0},
    }
    assert [w.code for w in local.warnings] == ["W103"]


# Frequency factors in the file are a fact that a config must agree with.

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture
def scaled(build: Builder) -> Builder:
    from ggufmap.modeldir.rope import llama3_factors

    factors = llama3_factors(20000.0, small.HEAD // 2, LLAMA3).astype(np.float32)
    build.tensors.append(TensorSpec("rope_freqs.weight", (small.HEAD // 2,), gb.F32, factors.tobytes()))
    return build


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 20000.0, **LLAMA3}},
        {"rope_theta": 20000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 20000.0, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {},
    ],
)
def test_scaling_that_gives_the_stored_factors_is_taken(scaled: Builder, spelling: dict[str, Any]) -> None:
    found = scaled(scaled.given(OLD | spelling))
    assert not found.warnings
    assert found.values["rope_parameters"] == {"rope_type": "llama3", "rope_theta": 20000.0, **LLAMA3}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 20000.0},
        {"rope_theta": 20000.0, "rope_scaling": None},
        {"rope_theta": 20000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3, "factor": 32.0}},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 20000.0, **LLAMA3, "high_freq_factor": 8}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 20000.0, **LLAMA3, "factor": None}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": "much", **LLAMA3, "factor": "eight"}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": -1, **LLAMA3, "factor": 10**400}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 0, **LLAMA3, "high_freq_factor": 1.0}},
    ],
)
def test_scaling_that_does_not_is_an_error(scaled: Builder, spelling: dict[str, Any]) -> None:
    folder = scaled.given(OLD | spelling)
    with pytest.raises(FileError, match=r"its RoPE scaling .* does not give the factors of rope_freqs\.weight") as e:
        scaled(folder)
    assert str(folder / "config.json") in e.value.message
    assert "another model" in str(e.value.hint)


# A header that fails to say something may be helped, as its error message promises.


def test_a_scaling_that_the_header_cannot_say_is_taken_from_the_config(build: Builder) -> None:
    build.metadata["llama.rope.scaling.type"] = (gb.STRING, "longrope")
    with pytest.raises(UnsupportedError, match="longrope"):
        build()
    rope = {"rope_type": "longrope", "rope_theta": 20000.0, "long_factor": [1.0], "short_factor": [1.0]}
    found = build(build.given(but(rope_parameters=rope)))
    assert found.values["rope_parameters"] == rope
    with pytest.raises(UnsupportedError, match="longrope"):
        build(build.given({"hidden_size": 64}))  # says nothing of it


def test_a_key_that_the_header_lacks_is_taken_from_the_config(build: Builder) -> None:
    del build.metadata["llama.attention.layer_norm_rms_epsilon"]
    with pytest.raises(MetadataError, match=r"layer_norm_rms_epsilon is missing"):
        build()
    assert build(build.given(ORIGINAL)).values["rms_norm_eps"] == 1e-5


def test_what_only_tensors_can_prove_is_not_taken_from_a_config(build: Builder) -> None:
    build.tensors = small.without(build.tensors, "token_embd.weight")
    with pytest.raises(FileError, match=r"token_embd\.weight is absent"):
        build(build.given(ORIGINAL))


# Files that are no config.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1, 2]", "a JSON object is expected, found list"),
        ("null", "a JSON object is expected, found NoneType"),
        ('{"a": ' * 100_000, "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("where", ["given", "model"])
def test_broken_json_names_the_file(build: Builder, where: str, text: str, message: str) -> None:
    folder = build.given(text, where)
    with pytest.raises(UsageError, match=message) as e:
        build(folder if where == "given" else None)
    assert e.value.message.startswith(str(folder / "config.json"))


def test_bytes_that_are_no_text(build: Builder) -> None:
    folder = build.given("{}")
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="not valid JSON"):
        build(folder)


def test_a_missing_config_is_said(build: Builder) -> None:
    (build.folder / "empty").mkdir()
    for path in (build.folder / "none", build.folder / "empty"):
        with pytest.raises(UsageError, match="cannot be read: No such file or directory") as e:
            build(path)
        assert "the header of the GGUF file is used" in str(e.value.hint)


def test_a_config_of_absurd_size_is_not_read(build: Builder) -> None:
    folder = build.given("{}")
    os.truncate(folder / "config.json", 1 << 34)  # sparse
    with pytest.raises(UsageError, match="larger than"):
        build(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": "big"},
        {"hidden_size": None},
        {"rms_norm_eps": 10**400},
        {"rms_norm_eps": True},
        {"rope_parameters": [1]},
        {"rope_theta": [1]},
        {"rope_scaling": "linear"},
        {"text_config": [1]},
        {"architectures": "LlamaForCausalLM"},
        {"hidden_act": "\ud800"},
    ],
)
def test_absurd_values_are_conflicts_not_crashes(build: Builder, values: dict[str, Any]) -> None:
    found = build(build.given(json.dumps(but(**values))))
    assert isinstance(found.values["hidden_size"], (int, str, type(None)))
    json.loads(json.dumps(dict(found.values)))


# Values of the header.


def test_integers_are_exact_and_floats_as_written(build: Builder) -> None:
    build.metadata["llama.context_length"] = (gb.UINT64, (1 << 63) - 1)
    build.metadata["llama.attention.layer_norm_rms_epsilon"] = (gb.FLOAT32, 1e-6)
    found = build()
    assert found.values["max_position_embeddings"] == (1 << 63) - 1
    assert found.values["rms_norm_eps"] == 1e-6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_json_cannot_hold_are_refused(build: Builder, value: float) -> None:
    build.metadata["llama.attention.layer_norm_rms_epsilon"] = (gb.FLOAT32, value)
    with pytest.raises(MetadataError, match="layer_norm_rms_epsilon should be a finite number, found"):
        build()


def test_generation_config_has_all_ends_and_no_sampling(tmp_path: Path) -> None:
    metadata = small.llama_metadata() | {"tokenizer.ggml.bos_token_id": (gb.UINT32, 1)}
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", metadata)) as checkpoint:
        assert generation_config((2, 7), checkpoint) == {"eos_token_id": [2, 7], "bos_token_id": 1}
        assert generation_config((), checkpoint) == {"bos_token_id": 1}
    with open_checkpoint(small.write_llama(tmp_path / "n.gguf")) as checkpoint:
        assert generation_config((), checkpoint) == {}


@pytest.mark.parametrize("name", ["llama_rope3", "mistral", "gemma3_linear_rope", "qwen3"])
def test_the_original_config_of_a_converted_model_is_no_conflict(tiny: TinyFactory, name: str) -> None:
    model, path = tiny(name)
    with open_checkpoint(path) as checkpoint:
        architecture = find_architecture(checkpoint.architecture, str(path))
        found = build_config(checkpoint, architecture, model.folder)
        own = config_from_header(checkpoint, architecture)
    original = json.loads((model.folder / "config.json").read_text())
    # Both classes compute the same, but the person should know which one runs.
    allowed = ["architectures"] if name == "mistral" else []
    assert [warning.message.split(":")[0] for warning in found.warnings] == allowed
    assert {key: found.values[key] for key in original} == original
    assert own.source == "header"


def test_numbers_that_no_value_can_be_computed_from_name_the_key(build: Builder, tmp_path: Path) -> None:
    rows = replace(find_architecture("llama", "m.gguf"), config=(derived("partial_rotary_factor", "rotated_part"),))
    build.metadata |= {"llama.attention.key_length": (gb.UINT32, 8), "llama.rope.dimension_count": (gb.UINT32, 4)}
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", build.metadata)) as checkpoint:
        assert config_from_header(checkpoint, rows).values["partial_rotary_factor"] == 0.5
    build.metadata["llama.attention.key_length"] = (gb.UINT32, 0)
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf", build.metadata)) as checkpoint:
        message = r"m\.gguf: config key partial_rotary_factor cannot be computed from this header: division by zero"
        with pytest.raises(FileError, match=message):
            config_from_header(checkpoint, rows)
