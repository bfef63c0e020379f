"""`ggufmap doctor` with the real vLLM, and with broken ones in its place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Cli
from support import small_models as small
from support.converter import TinyFactory
from support.synthetic import generator


def levels(report: Mapping[str, Any], check: str) -> list[str]:
    return [finding["level"] for finding in report["findings"] if finding["check"] == check]


def found(report: Mapping[str, Any], check: str) -> str:
    return "\n".join(finding["found"] for finding in report["findings"] if finding["check"] == check)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python looks into first, in doctor's own process and in those that it starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def package(site: Path, name: str, code: str) -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)


def entry_point(site: Path, name: str, value: str) -> None:
    """A plugin of vLLM's, as an installed package announces it."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {value}\n")


def test_a_real_model_on_this_machine(cli: Cli, gemma: Path) -> None:
    result = cli("doctor", gemma, "--json")
    report = result.json
    assert (result.code, report["ok"], report["exit_code"]) == (0, True, 0), report
    checks = {finding["check"] for finding in report["findings"]}
    assert {"versions", "vLLM", "plugin", "gpu", "mapping", "attention", "dtype", "storage", "disk", "memory"} <= checks
    assert "CPU_ATTN for 15 target layers (attention, head size 256, bfloat16, sliding window)" in found(
        report, "attention"
    )
    assert "bfloat16, as the config asks" in found(report, "dtype")
    assert "253 MB read" in found(report, "disk")
    assert "536 MB of weights" in found(report, "memory")


def test_a_model_that_the_cpu_has_no_attention_for(cli: Cli, tiny: TinyFactory) -> None:
    result = cli("doctor", tiny("glm52")[1])
    assert result.code == 1
    assert "problem" in result.out and "Sparse Attention is not supported on CPU" in result.out
    assert "-> this model needs a GPU" in result.out
    assert "carries index_share_for_mtp_iteration=True to the draft's config" in result.out


def test_plugins_that_do_not_load_or_are_left_out(cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(site, "unloadable", "no_such_module:register")
    monkeypatch.setenv("VLLM_PLUGINS", "unloadable")
    result = cli("doctor", "--json")
    report = result.json
    assert result.code == 0, report
    assert "unloadable does not load: ModuleNotFoundError: No module named 'no_such_module'" in found(report, "plugin")
    assert "VLLM_PLUGINS=unloadable leaves ggufmap out" in found(report, "plugin")


def test_a_torchvision_for_another_torch_breaks_vllm_itself(cli: Cli, site: Path) -> None:
    package(site, "torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    result = cli("doctor", "--json")
    assert result.code == 3
    broken = [finding for finding in result.json["findings"] if finding["check"] == "imports"]
    assert [finding["level"] for finding in broken] == ["warning", "problem"]
    assert all("operator torchvision::nms does not exist" in finding["found"] for finding in broken)
    assert all("pip uninstall -y torchvision" in finding["remedy"] for finding in broken)


def test_a_plugin_that_raises_ends_every_vllm_process(cli: Cli, site: Path) -> None:
    package(site, "angry", "def register():\n    raise RuntimeError('first line\\nbuilt for another vLLM')")
    entry_point(site, "angry", "angry:register")
    result = cli("doctor", "--json")
    assert result.code == 1
    assert "angry ends every vLLM process: RuntimeError: built for another vLLM" in found(result.json, "plugin")


@pytest.mark.parametrize(
    ("code", "check", "said"),
    [
        ("raise ImportError('undefined symbol: x')", "imports", "does not import: ImportError: undefined symbol: x"),
        (
            "import os\nos.write(2, b'no AVX')\nos.abort()",
            "vLLM",
            "the process that imports it: ended (exit -6): no AVX",
        ),
    ],
    ids=["raises", "aborts"],
)
def test_a_broken_vllm_is_a_finding_and_the_model_is_still_looked_at(
    cli: Cli, site: Path, tmp_path: Path, code: str, check: str, said: str
) -> None:
    package(site, "vllm", code)
    result = cli("doctor", small.write_llama(tmp_path / "m.gguf"), "--json")
    assert result.code == 3, result.err
    assert said in found(result.json, check)
    assert "fits by the rows alone" in found(result.json, "mapping")
    assert levels(result.json, "disk") == ["ok"]


def test_packed_weights_that_nothing_here_can_hold(cli: Cli, tmp_path: Path) -> None:
    result = cli("doctor", small.write_llama(tmp_path / "m.gguf"), "--storage", "packed", "--json")
    assert result.code == 3
    assert "nothing can be packed: no packed kernels for the platform cpu" in found(result.json, "mapping")


def test_a_device_that_this_vllm_has_no_classes_for(cli: Cli) -> None:
    result = cli("doctor", "--device", "sm_100", "--json")
    assert result.code == 3
    assert "needs vLLM's CUDA build" in found(result.json, "vLLM")


@pytest.mark.skipif("GGUFMAP_CUDA_ENV" not in os.environ, reason="needs what scripts/cuda-dryrun makes")
@pytest.mark.parametrize("device", ["sm_90", "sm_100", "sm_120"])
def test_a_simulated_gpu_has_sparse_mla_backends_by_vllm_s_own_selection(tmp_path: Path, device: str) -> None:
    synthesize = generator()
    model = synthesize.write(synthesize.MODELS["glm-5.2"](), tmp_path)[0]
    python = Path(os.environ["GGUFMAP_CUDA_ENV"]) / "bin" / "python"
    command = [python, "-m", "ggufmap.cli.main", "doctor", model, "--device", device, "--tp", "8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    kinds = found(json.loads(done.stdout), "attention").splitlines()
    assert sum(int(line.split(" for ")[1].split()[0]) for line in kinds) == 78 + 1
    assert all("SPARSE" in line.split(" for ")[0] and "(MLA sparse, head size 576" in line for line in kinds)


def test_a_file_that_is_none_is_bad_input(cli: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "x.gguf"
    bad.write_bytes(b"no GGUF at all" * 10)
    result = cli("doctor", bad)
    assert (result.code, result.out) == (2, "")
    assert cli("doctor", tmp_path / "absent.gguf").code == 2
