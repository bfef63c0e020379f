"""Models with a vision tower: what is done with which projector, the config of the whole, what its processor reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families.tracing import Tracer
from support import conformance, gguf_edit
from support import gguf_bytes as gb
from support.conformance import Made
from support.gguf_edit import Edited

from ggufmap.errors import FileError
from ggufmap.modeldir.build import build_model_dir
from ggufmap.serving.loader import _open
from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.stream import stream

WHOLE = {
    "gemma3_vision": ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM", "gemma3"),
    "qwen25vl": ("Qwen2_5_VLForConditionalGeneration", "Qwen2ForCausalLM", "qwen2.5vl_merger"),
    "qwen3vl": ("Qwen3VLForConditionalGeneration", "Qwen3ForCausalLM", "qwen3vl_merger"),
    "qwen3vlmoe": ("Qwen3VLMoeForConditionalGeneration", "Qwen3MoeForCausalLM", "qwen3vl_merger"),
}
Make = Callable[[str], Made]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The tiny models by name, converted twice: text and projector."""
    root, found = tmp_path_factory.mktemp("vision"), dict[str, Made]()

    def make(name: str) -> Made:
        if name not in found:
            found[name] = conformance.make(conformance.all_cases()[name], root)
        return found[name]

    return make


def projector(made: Made) -> Path:
    return made.gguf.with_name(f"mmproj-{made.gguf.name}")


def pair(made: Made, folder: Path, change: Callable[[Edited], object], *, of_text: bool = False) -> Path:
    """The model's two files in `folder`, one of them changed; the text file."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, changes in ((made.gguf, of_text), (projector(made), not of_text)):
        if changes:
            edited = gguf_edit.read(file)
            change(edited)
            edited.write(folder / file.name)
        else:
            shutil.copy(file, folder)
    return folder / made.gguf.name


def offline(path: Path, **options: Any) -> Iterator[Preflight]:
    found = preflight(path, offline=True, **options)
    with found.checkpoint:
        yield found


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_class_takes_every_tensor_and_lacks_none(made: Make, tracer: Tracer, name: str) -> None:
    found = tracer(made(name).gguf)
    trace = found.plan.trace
    assert trace is not None and found.plan.ok, found.plan.problems()
    assert trace.target.class_name == WHOLE[name][0]
    tower = [n for n in trace.target.parameters if n.startswith(("vision_tower.", "visual."))]
    assert len(tower) > 20 and all(parameter.complete for parameter in trace.target.parameters.values())
    assert not found.plan.skipped and found.plan.model.mmproj == str(projector(made(name)))


@pytest.mark.parametrize("name", WHOLE)
def test_without_its_projector_it_is_the_text_model(made: Make, tmp_path: Path, name: str) -> None:
    alone = Path(shutil.copy(made(name).gguf, tmp_path))
    for found in offline(alone):
        assert found.plan.ok and found.plan.model_class == WHOLE[name][1]
        assert "vision_config" not in found.config.values and not found.config.files
        assert found.plan.model.mmproj is None and not found.plan.warnings


@pytest.mark.parametrize("name", WHOLE)
def test_images_are_off_with_a_projector_that_has_no_rows(made: Make, tmp_path: Path, name: str) -> None:
    path = pair(made(name), tmp_path, lambda file: file.set("clip.projector_type", "someone_s"))
    for found in offline(path):
        assert found.plan.ok and found.plan.model_class == WHOLE[name][1]
        (warning,) = found.plan.warnings
        assert warning.code == "W122" and "images are off" in warning.message and "someone_s" in warning.message
        assert {x.tensor for x in found.plan.skipped} == found.checkpoint.projector_tensors
        assert all("someone_s" in x.reason for x in found.plan.skipped)
        assert "vision_config" not in found.config.values


def test_the_report_says_why_none_of_several_is_taken(made: Make, tmp_path: Path) -> None:
    path = pair(made("qwen25vl"), tmp_path, lambda file: None)
    shutil.copy(projector(made("qwen25vl")), tmp_path / "mmproj-other.gguf")
    for found in offline(path):
        assert [w.code for w in found.plan.warnings] == ["W121"] and found.plan.model_class == "Qwen2ForCausalLM"
    for found in offline(path, mmproj=tmp_path / "mmproj-other.gguf"):
        assert not found.plan.warnings and found.plan.model_class == WHOLE["qwen25vl"][0]


@pytest.mark.parametrize("name", WHOLE)
def test_a_tower_with_a_gap_is_not_served(made: Make, tmp_path: Path, name: str) -> None:
    path = pair(made(name), tmp_path, lambda file: file.drop_tensors(lambda n: n == "v.blk.1.attn_out.bias"))
    for found in offline(path):
        (missing,) = found.plan.missing
        assert "v.blk.1.attn_out.bias is not in the file" in missing.reason


def swap_mlp(file: Edited) -> None:
    """The names that llama.cpp's converters gave until May 2025."""
    for name in [name for name in file.tensors if ".ffn_up." in name]:
        other = name.replace("ffn_up", "ffn_down")
        file.tensors[name], file.tensors[other] = file.tensors[other], file.tensors[name]
    file.set("clip.vision.feed_forward_length", 0)


@pytest.mark.parametrize("name", ["gemma3_vision", "qwen25vl"])
def test_old_files_with_the_mlp_s_names_exchanged(made: Make, tmp_path: Path, name: str) -> None:
    path = pair(made(name), tmp_path, swap_mlp)
    again = Made(made(name).case, made(name).folder, path)
    assert conformance.check_values(again) == []
    assert conformance.check_config(again) == []


def retold(file: Edited, old: str, new: str) -> None:
    """Change the text of a token."""
    kind, tokens = file.metadata["tokenizer.ggml.tokens"]
    texts = [text.replace(old, new) for text in tokens.items]
    assert texts != tokens.items
    file.metadata["tokenizer.ggml.tokens"] = (kind, gb.Array(tokens.item_type, texts))


def test_a_token_that_the_vocabulary_lacks_becomes_its_next(made: Make, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    # Gemma 3's first files have only the tokens with embeddings of their own.
    lose = "<image_soft_token>", "<something>"
    path = pair(made("gemma3_vision"), tmp_path / "files", lambda file: retold(file, *lose), of_text=True)
    for found in offline(path):
        assert found.config.values["image_token_index"] == 512 == found.config.assumed["image_token_index"]
        folder = build_model_dir(found.checkpoint, found.config, output=tmp_path / "dir")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.image_token, tokenizer.image_token_id) == ("<image_soft_token>", 512)
    assert (tokenizer.boi_token_id, tokenizer.eoi_token_id) == (7, 8)
    assert tokenizer("<start_of_image><image_soft_token>")["input_ids"][-2:] == [7, 512]


def test_a_vocabulary_without_marks_of_images_is_refused(made: Make, tmp_path: Path) -> None:
    path = pair(made("qwen3vl"), tmp_path, lambda file: retold(file, "image_pad", "image_pod"), of_text=True)
    with pytest.raises(FileError, match=r"the vocabulary has no token '<\|image_pad\|>'"):
        preflight(path, offline=True)


def rounded(file: Path) -> dict[str, Any]:
    """A JSON file with its numbers as a header holds them."""
    found: dict[str, Any] = json.loads(file.read_text(), parse_float=lambda text: float(np.float32(text)))
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_the_processor_reads_what_the_original_s_says(made: Make, tmp_path: Path, name: str) -> None:
    """Of the files beside the original: every key that they have, with the same value."""
    for found in offline(made(name).gguf):
        folder = build_model_dir(found.checkpoint, found.config, output=tmp_path / "dir")
        manifest = json.loads((folder / "ggufmap.json").read_text())
        assert manifest["mmproj"] == str(projector(made(name)))
    for file in made(name).case.projector:
        ours, original = (rounded(where / file) for where in (folder, made(name).folder))
        assert {key: ours.get(key) for key in original} == original
    checkpoint, plan = _open(folder)
    with checkpoint:
        assert plan.model_class == WHOLE[name][0]
        names = {n for n, _ in stream(plan, checkpoint, torch.bfloat16)}
    assert names == set(conformance.original_tensors(made(name).folder))


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
def test_a_given_config_of_the_whole_wins(made: Make, tmp_path: Path, flat: bool) -> None:
    original = json.loads((made("qwen25vl").folder / "config.json").read_text())
    original["vision_config"]["tokens_per_second"] = 4
    if flat:  # as the published repositories have it
        text = original.pop("text_config")
        original = {**text, **original}
    (tmp_path / "config.json").write_text(json.dumps(original))
    (tmp_path / "preprocessor_config.json").write_text('{"max_pixels": 4096}')
    for found in offline(made("qwen25vl").gguf, hf_config=tmp_path):
        values: dict[str, Any] = dict(found.config.values)
        assert (values["model_type"], values["architectures"]) == ("qwen2_5_vl", [WHOLE["qwen25vl"][0]])
        assert values["vision_config"] == original["vision_config"]
        assert values["text_config"]["hidden_size"] == 256 and "vision_config" not in values["text_config"]
        assert values["image_token_id"] == 510
        assert not any(key.startswith("vision_config") for key in found.config.assumed)
        assert not [warning for warning in found.plan.warnings if warning.code != "W103"]
        folder = build_model_dir(found.checkpoint, found.config, output=tmp_path / "dir")
    assert json.loads((folder / "preprocessor_config.json").read_text()) == {"max_pixels": 4096}


def test_a_given_config_of_the_whole_without_a_projector(made: Make, tmp_path: Path) -> None:
    alone = Path(shutil.copy(made("qwen25vl").gguf, tmp_path))
    for found in offline(alone, hf_config=made("qwen25vl").folder):
        assert "W101" in [warning.code for warning in found.plan.warnings]
        assert found.config.values["architectures"] == ["Qwen2ForCausalLM"]
        assert "vision_config" not in found.config.values


def test_absurd_towers_are_refused(made: Make, tmp_path: Path) -> None:
    for blocks in (0, 10**6):
        path = pair(made("qwen3vl"), tmp_path / str(blocks), lambda f, n=blocks: f.set("clip.vision.block_count", n))
        with pytest.raises(FileError, match=r"mmproj-.*clip\.vision\.block_count is \d+, the file has"):
            preflight(path, offline=True)
