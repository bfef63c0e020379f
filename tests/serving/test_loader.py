"""The load: every element of a real module is written from the file, or there is no load at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import pytest
import torch
from support import gguf_bytes as gb
from support import small_models as small
from torch import nn

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError, MappingError, UsageError
from ggufmap.modeldir.manifest import MANIFEST
from ggufmap.serving.loader import load_into
from ggufmap.serving.memory import KEY, limit_of, loader_arguments
from ggufmap.stream import pages
from ggufmap.stream.workers import LEAST_LIMIT


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


def test_the_warning_of_every_norm_is_left_out_and_no_other(tmp_path: Path) -> None:
    """By vLLM's own loader, whose warning it is."""
    from vllm.model_executor.models.utils import AutoWeightsLoader

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("vllm.model_executor.models.utils")

    class Vllm(Model):
        def __init__(self) -> None:
            super().__init__({})
            self.model = nn.Module()
            for name, shape in (("embed_tokens", (48, 64)), ("norm", (64,))):
                holder = nn.Module()
                holder.weight = nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16), requires_grad=False)
                self.model.add_module(name, holder)

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            log.warning("something else")
            wanted = (pair for pair in weights if pair[0] in NAMES)
            AutoWeightsLoader(self).load_weights(wanted)

    folder = model_dir(tmp_path / "d", small.write_llama(tmp_path / "m.gguf"))
    log.addHandler(handler)
    try:
        load_into(Vllm(), folder, torch.bfloat16)
        assert said == ["something else"]
        AutoWeightsLoader(Vllm()).load_weights([("model.norm.weight", torch.ones(64))])
        assert len(said) == 2 and "torch.float32" in said[1]  # as it is when another loads
    finally:
        log.removeHandler(handler)


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


class Spoiling(Model):
    """Does something to the file when the first tensor has come."""

    def __init__(self, names: dict[str, tuple[int, ...]], spoil: Callable[[], object]) -> None:
        super().__init__(names)
        self.spoil = spoil

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        iterator = iter(weights)
        first = next(iterator)
        self.spoil()
        super().load_weights(chain([first], iterator))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20_000)


def overwrite(path: Path) -> None:
    """The same header and size: no read fails."""
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(bytes(100))


def replace_file(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "truncated or replaced after it was opened"),
        (overwrite, "was replaced or changed while it was read"),
        (replace_file, "was replaced or changed while it was read"),
        (Path.unlink, "was replaced or changed while it was read"),
    ],
)
def test_a_file_that_changes_during_the_load_is_an_error_that_names_it(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    model = Spoiling(NAMES, lambda: spoil(path))
    with pytest.raises(FileError, match=rf"{path}: ") as e:
        load_into(model, model_dir(tmp_path / "d", path), torch.bfloat16)
    assert message in str(e.value)


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight"])
def test_a_read_that_fails_names_the_file_and_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A bad sector: the kernel answers EIO."""
    path = small.write_llama(tmp_path / "m.gguf")
    folder = model_dir(tmp_path / "d", path)
    with open_checkpoint(path) as checkpoint:
        bad = checkpoint.tensors[name].offset
    preadv = os.preadv

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    message = rf"{path}: reading \d+ bytes at offset {bad} failed: Input/output error"
    with pytest.raises(FileError, match=message):
        load_into(Model(NAMES), folder, torch.bfloat16)


def test_a_killed_load_leaves_nothing(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    folder = model_dir(tmp_path / "d", path)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    before = sorted((file, file.stat().st_mtime_ns) for file in tmp_path.rglob("*") if file.is_file())
    code = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
import torch
from serving.test_loader import NAMES, Spoiling, load_into
load_into(Spoiling(NAMES, lambda: (os.write(1, b"loading"), time.sleep(600))), Path({str(folder)!r}), torch.bfloat16)
"""
    environment = {**os.environ, "TMPDIR": str(scratch), "HOME": str(scratch)}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=scratch, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.read(7) == b"loading"
    process.kill()
    process.wait()
    process.stdout.close()
    assert sorted((file, file.stat().st_mtime_ns) for file in tmp_path.rglob("*") if file.is_file()) == before


def test_a_load_says_what_it_did_and_stays_within_its_memory(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    done = load_into(Model(NAMES), model_dir(tmp_path / "d", path), torch.bfloat16, memory=LEAST_LIMIT)
    assert done.parameters == len(NAMES) and 0 < done.peak <= LEAST_LIMIT
    assert 0 < done.read <= done.stored


def test_a_load_asks_for_huge_pages_for_what_holds_them(tmp_path: Path) -> None:
    class Wide(Model):
        """One parameter more, of 16 MiB, that the class fills itself."""

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            super().load_weights(weights)
            self["wide"].data.copy_(torch.ones(4 << 20))

    folder, size = model_dir(tmp_path / "d", small.write_llama(tmp_path / "m.gguf")), pages._size()
    assert load_into(Model(NAMES), folder, torch.bfloat16).huge == 0
    found = load_into(Wide(NAMES | {"wide": (4 << 20,)}), folder, torch.bfloat16).huge
    assert found >= (16 << 20) - 2 * size if size else found == 0


def test_the_memory_limit_comes_from_vllm_s_loader_config() -> None:
    """As `ggufmap serve` sets it, as a person may, and not at all."""
    option, text = loader_arguments(123 << 20)
    assert option == "--model-loader-extra-config"
    assert limit_of(json.loads(text)) == 123 << 20
    assert limit_of({KEY: "2G"}) == 2 * 10**9
    assert limit_of({}) == limit_of(None) == 1 << 30
    with pytest.raises(UsageError, match="max_host_memory 'lots'"):
        limit_of({KEY: "lots"})


def test_a_plan_with_problems_writes_nothing(tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf", tensors=[*small.llama_tensors(), small.tensor("stranger", 4)])
    model = Model(NAMES)
    with pytest.raises(MappingError, match="unmapped stranger"):
        load_into(model, model_dir(tmp_path / "d", path), torch.bfloat16)
    assert torch.equal(model["model.norm.weight"], torch.full((64,), 7.0))


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a folder made by ggufmap"):
        load_into(Model(NAMES), tmp_path, torch.bfloat16)
