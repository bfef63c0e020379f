"""The plugin is loaded by every vLLM process: it adds one entry and disturbs nothing, whatever vLLM is like."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest


def run(code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    options = ["-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}" if path else code]
    return subprocess.run([sys.executable, *options], capture_output=True, text=True, timeout=120)


def test_is_an_entry_point_of_vllm() -> None:
    (found,) = [x for x in entry_points(group="vllm.general_plugins") if x.name == "ggufmap"]
    assert found.value == "ggufmap.serving.plugin:register"


def test_importing_it_imports_neither_vllm_nor_torch() -> None:
    done = run("import sys, ggufmap.serving.plugin; print({'vllm', 'torch', 'rich', 'numpy'} & sys.modules.keys())")
    assert (done.returncode, done.stdout) == (0, "set()\n")


def test_registers_one_load_format_and_changes_no_other() -> None:
    done = run(
        """
from vllm.model_executor import model_loader
table = model_loader._LOAD_FORMAT_TO_MODEL_LOADER
before = dict(table)
from ggufmap.serving.plugin import register
register()
made = table["ggufmap"]
register()
assert table == {**before, "ggufmap": made}, "one entry, once"
from vllm.config.load import LoadConfig
config = LoadConfig(load_format="ggufmap")
assert type(model_loader.get_model_loader(config)) is made
print("fine")
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"


@pytest.mark.parametrize(
    "vllm",
    [
        "raise RuntimeError('a broken vLLM')",
        "raise ImportError('no such symbol')",
        "",  # a vLLM that has nothing of what the plugin wants
        "import sys, types\nmodel_executor = types.ModuleType('vllm.model_executor')\n"
        "model_executor.model_loader = types.ModuleType('m')\nsys.modules['vllm.model_executor'] = model_executor",
    ],
)
def test_whatever_vllm_is_like_it_only_logs(tmp_path: Path, vllm: str) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(vllm)
    done = run("from ggufmap.serving.plugin import register\nregister()\nprint('alive')", path=tmp_path)
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert "the load format 'ggufmap' is not available in this vLLM" in done.stderr
