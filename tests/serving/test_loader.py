"""The load: every element of a real module is written from the file, or there is no load at all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from support import gguf_bytes as gb
from support import small_models as small
from torch import nn

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MappingError
from ggufmap.modeldir.manifest import MANIFEST
from ggufmap.serving.loader import load_into


class Model(nn.Module):
    """A parameter per checkpoint tensor, loaded by name as simple vLLM models are."""

    def __init__(self, names: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.names = list(names)
        self.values = nn.ParameterList(nn.Parameter(torch.full(shape, 7.0)) for shape in names.values())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if name in self.names:
                self[name].data.copy_(tensor)

    def __getitem__(self, name: str) -> nn.Parameter:
        found: nn.Parameter = self.values[self.names.index(name)]
        return found


NAMES: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (48, 64), "model.norm.weight": (64,)}


def model_dir(folder: Path, gguf: Path) -> Path:
    with open_checkpoint(gguf) as checkpoint:
        manifest = {"gguf": str(gguf), "header_hash": checkpoint.header_hash()}
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_parameters_hold_the_file_s_values(tmp_path: Path) -> None:
    model = Model(NAMES)
    load_into(model, model_dir(tmp_path / "d", small.write_llama(tmp_path / "m.gguf")), torch.bfloat16)
    for name, tensor in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ):
        assert torch.equal(model[name], torch.from_numpy(small.values(tensor, *NAMES[name])))


def test_a_parameter_that_nothing_fills_is_no_load(tmp_path: Path) -> None:
    model = Model({**NAMES, "model.extra.weight": (3, 4)})
    folder = model_dir(tmp_path / "d", small.write_llama(tmp_path / "m.gguf"))
    with pytest.raises(MappingError, match="the load left 1 of 3 parameters incomplete") as e:
        load_into(model, folder, torch.bfloat16)
    assert "values.2: nothing is written" in e.value.message
    assert "ggufmap audit MODEL" in str(e.value.hint)


def test_a_parameter_that_is_filled_in_part_is_no_load(tmp_path: Path) -> None:
    class Half(Model):
        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            super().load_weights((n, t) for n, t in weights if n != "model.norm.weight")
            self["model.norm.weight"].data[:32].copy_(torch.ones(32))

    folder = model_dir(tmp_path / "d", small.write_llama(tmp_path / "m.gguf"))
    with pytest.raises(MappingError, match=r"values\.1: 32 of 64 elements are not written"):
        load_into(Half(NAMES), folder, torch.bfloat16)


def test_a_file_that_was_replaced_is_not_loaded(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    folder = model_dir(tmp_path / "d", path)
    small.write_llama(path, small.llama_metadata() | {"general.name": (gb.STRING, "another")})
    model = Model(NAMES)
    with pytest.raises(FileError, match=r"m\.gguf: its header is not the one that .* was made from") as e:
        load_into(model, folder, torch.bfloat16)
    assert "start again" in str(e.value.hint)
    assert torch.equal(model["model.norm.weight"], torch.full((64,), 7.0))


def test_a_plan_with_problems_writes_nothing(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), small.tensor("stranger", 4)])
    model = Model(NAMES)
    with pytest.raises(MappingError, match="unmapped stranger"):
        load_into(model, model_dir(tmp_path / "d", path), torch.bfloat16)
    assert torch.equal(model["model.norm.weight"], torch.full((64,), 7.0))


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a folder made by ggufmap"):
        load_into(Model(NAMES), tmp_path, torch.bfloat16)
