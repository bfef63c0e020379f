"""Checks of the GPU: is there one, what was torch compiled for, which attention backends and which dtype."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggufmap.doctor.facts import Attention, Engine, Facts, Model
from ggufmap.doctor.finding import Finding, note, ok, problem, warning
from ggufmap.report.patterns import size
from ggufmap.target.devices import parse_device

_SIMULATE = "or ask for a simulated one: --device sm_90, sm_100 or sm_120"
_HALF = "float16"


def gpus(facts: Facts) -> Iterator[Finding]:
    """The GPUs that torch sees, or why it sees none."""
    environment = facts.environment
    if facts.device:
        yield note("gpu", f"{facts.device} is simulated: classes and backends are asked for, no memory is counted")
        return
    for number, gpu in enumerate(environment.gpus):
        memory = f"{size(gpu.free)} of {size(gpu.total)} free"
        yield ok("gpu", f"{number}: {gpu.name}, compute capability {_dotted(gpu.capability)}, {memory}")
    if environment.gpus:
        if len({(gpu.name, gpu.total) for gpu in environment.gpus}) > 1:
            remedy = "choose equal ones with CUDA_VISIBLE_DEVICES for tensor parallelism: the smallest sets the limit"
            yield warning("gpu", "the GPUs are not all of one kind", remedy)
        ranks = 1 if facts.model is None else facts.model.world.tensor_parallel
        if ranks > len(environment.gpus):
            found = f"--tp {ranks} needs {ranks} GPUs on this machine, there are {len(environment.gpus)}"
            yield problem(
                "gpu", found, f"--tp {len(environment.gpus)}, or several machines with vLLM and Ray", lacking=True
            )
    elif environment.torch_cuda is not None:
        why = environment.cuda_error or "torch sees none"
        if environment.driver:
            why += f" (driver {environment.driver}, torch is built for CUDA {environment.torch_cuda})"
        remedy = (
            "install a driver that fits torch's CUDA and check that nvidia-smi sees the GPU from here, " + _SIMULATE
        )
        yield problem("gpu", f"vLLM's CUDA build finds no GPU: {why}", remedy, lacking=True)
    elif environment.platform:
        seen = f"; the NVIDIA driver {environment.driver} is loaded" if environment.driver else ""
        remedy = "pip install 'ggufmap[gpu]' into another environment to use the GPU" if environment.driver else ""
        yield note("gpu", f"none: this is vLLM's build for the platform {environment.platform}{seen}", remedy)


def compiled_for(facts: Facts) -> Iterator[Finding]:
    """Whether torch's own kernels are compiled for the GPU."""
    archs = facts.environment.torch_archs
    if not archs:
        return
    simulated = parse_device(facts.device) if facts.device else None
    wanted = {gpu.capability for gpu in facts.environment.gpus} | ({simulated} if simulated else set())
    for capability in sorted(wanted):
        name = f"sm_{capability[0]}{capability[1]}"
        if runs_on(archs, capability):
            yield ok("torch", f"has kernels for {name} ({' '.join(archs)})")
        else:
            remedy = "install a torch (and the vLLM that requires it) whose CUDA build lists this GPU"
            yield problem("torch", f"has no kernels for {name}: it is compiled for {' '.join(archs)}", remedy)


def runs_on(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code compiled for one of `archs` runs: binaries within a major version upwards, `compute_` (PTX) on all
    that is newer (CUDA C++ programming guide, binary and PTX compatibility).
    """
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if match is None:
            continue
        made, exact = (int(match[2]), int(match[3])), match[4] == "a"
        if made == capability or (
            not exact and made <= capability and (match[1] == "compute" or made[0] == capability[0])
        ):
            return True
    return False


def attention(facts: Facts) -> Iterator[Finding]:
    """For each kind of attention layer of the model, the backend that vLLM's own selection chooses on this device."""
    engine = _engine(facts)
    if engine is None:
        return
    if engine.error is not None:
        remedy = "`ggufmap audit` shows the trace; another device or vLLM version may build it"
        yield problem("attention", f"vLLM does not build this model here: {engine.error}", remedy)
    for kind in engine.attention:
        what = f"{kind.layers} {kind.role} layers ({kind.needs})"
        if kind.chosen is None:
            yield problem("attention", f"no backend for {what}: {_why(kind)}", _other_device(facts))
        else:
            others = f"; also possible: {', '.join(kind.others)}" if kind.others else ""
            refused = f"; not for them: {', '.join(kind.refused)}" if kind.refused else ""
            yield ok("attention", f"{kind.chosen} for {what}{others}{refused}")


def _why(kind: Attention) -> str:
    refused = "; ".join(f"{name}: {reason}" for name, reason in kind.refused.items())
    return refused or kind.error or "vLLM names none"


def _other_device(facts: Facts) -> str:
    if facts.environment.platform == "cpu" and not facts.device:
        return "this model needs a GPU; `ggufmap doctor MODEL --device sm_100` in a CUDA environment names its backends"
    return (
        "try other GPUs with --device (sm_90, sm_100, sm_120), or a vLLM version that has one (docs/vllm-versions.md)"
    )


def dtype(facts: Facts) -> Iterator[Finding]:
    """What the model's config asks for, what the platform has, and what vLLM makes of it."""
    engine = _engine(facts)
    if engine is None or facts.model is None or not engine.supported_dtypes:
        return
    found = facts.model.found
    asked, has = found.config.values.get("dtype"), ", ".join(engine.supported_dtypes)
    if engine.dtype is None:
        yield problem(
            "dtype", f"vLLM takes none: {engine.dtype_error}", "pass --dtype float32 to vLLM, or use another GPU"
        )
    elif engine.dtype == _HALF and found.architecture.bf16_only is not None:
        reason = found.architecture.bf16_only
        yield problem(
            "dtype",
            f"vLLM resolves float16, which this family cannot use: {reason}; the device has {has}",
            "serve with -- --dtype float32",
        )
    elif asked is not None and engine.dtype != asked:
        yield note("dtype", f"{engine.dtype}: the config asks for {asked}, the device has {has}")
    else:
        yield ok("dtype", f"{engine.dtype}, as the config asks; the device has {has}")


def _engine(facts: Facts) -> Engine | None:
    model: Model | None = facts.model
    return None if model is None else model.engine


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
