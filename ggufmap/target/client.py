"""Ask for a trace: start the worker process, send it names and shapes, read the TraceResult back."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ggufmap.errors import MissingDependencyError, UsageError
from ggufmap.mapping.plan import ModelTrace, Module, Packing, Parameter, ParameterUse, Plan, Role, TraceResult
from ggufmap.target import compat
from ggufmap.target.devices import World
from ggufmap.target.words import last_words

_TIMEOUT_S = 900
_TAIL_LINES = 12
_BUSY = "The machine may be out of memory or very busy; --offline checks the names by the rows alone."
_MORE_CONFIG = "Give the original's config.json with --hf-config DIR: the header does not say all that the class needs."
Names = Sequence[tuple[str, tuple[int, ...]]]
Taken = Mapping[tuple[str, tuple[int, ...]], Sequence[ParameterUse]]
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
# Where scripts/cuda-dryrun puts a libcuda.so.1 that knows no device.
_STUB_FOLDER = Path(sys.prefix) / "lib" / "ggufmap-cuda-stub"


def vllm_available() -> bool:
    """Whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def trace(
    plan: Plan,
    config: Mapping[str, object],
    draft_flags: Iterable[str] = (),
    world: World | None = None,
    *,
    ask_packing: bool = False,
) -> TraceResult:
    """Trace the plan's checkpoint tensors through the vLLM classes that `config` names, in a process of its own.

    `draft_flags` are config keys whose arrival on the draft's config is checked. Layers that the plan's storage has
    packed are built so. With `ask_packing` the answer says which layers could be.

    Raises MissingDependencyError when vLLM is absent or cannot build the model, with its last words.
    """
    if not vllm_available():
        raise MissingDependencyError(
            "vLLM is not installed in this environment",
            hint="pip install 'ggufmap[cpu]' (or [gpu]); --offline checks the names by the rows alone.",
        )
    world = world or World()
    names: dict[Role, list[tuple[str, tuple[int, ...]]]] = {role: [] for role in Role}
    for assignment in plan.assignments:
        names[assignment.role] += assignment.outputs
    with tempfile.TemporaryDirectory(prefix="ggufmap-trace-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        answer = _ask(
            {
                "model_dir": folder,
                "target": names[Role.TARGET],
                "draft": names[Role.DRAFT],
                "draft_flags": list(draft_flags),
                "world": asdict(world),
                "ask_packing": ask_packing,
                "layers": {} if plan.storage is None else {role: plan.storage.layers(role) for role in Role},
            },
            _environment(world.device),
        )
    return _result(answer)


@dataclass(frozen=True, slots=True)
class Probed:
    """The class that a probe found, its model type, and the checkpoint names and shapes that it takes."""

    model_class: str
    model_type: str
    taken: Taken


def probe(
    config: Mapping[str, object], wanted: str, stages: Sequence[Sequence[Names]], world: World | None = None
) -> Probed:
    """Find the vLLM class called `wanted` (or like it) and build it with `config`: which names does it take?

    `stages` are the names to try, by pattern; a stage is tried when those before it give nothing.

    Raises UsageError naming the nearest classes when there is no such class, MissingDependencyError when vLLM cannot
    build it.
    """
    world = world or World()
    with tempfile.TemporaryDirectory(prefix="ggufmap-probe-") as folder:
        request = {"model_dir": folder, "config": dict(config), "wanted": wanted, "stages": stages}
        try:
            answer = _ask({**request, "world": asdict(world)}, _environment(world.device))
        except MissingDependencyError as e:
            e.hint = _MORE_CONFIG
            raise
    if "near" in answer:
        near = f" (nearest: {', '.join(answer['near'])})" if answer["near"] else ""
        raise UsageError(
            f"vLLM {compat.vllm_version()} has no model class like {wanted!r}{near}",
            hint="Name the class with --model-class NAME, or give the original's config.json with --hf-config DIR.",
        )
    taken = {(name, tuple(shape)): [ParameterUse(**use) for use in uses] for name, shape, uses in answer["taken"]}
    return Probed(answer["model_class"], answer["model_type"], taken)


def survey_environment(device: str = "") -> dict[str, Any]:
    """What torch and vLLM say of themselves here (see `survey.environment`); with `device`, as if that GPU was there.

    Raises MissingDependencyError, whose message has the last line of what the process said, when it gave no answer.
    """
    return _survey({"survey": "environment", "device": device}, device)


def survey_model(config: Mapping[str, object], world: World, *, draft: bool) -> dict[str, Any]:
    """What vLLM says of the model that `config` describes (see `survey.model`). Raises like `survey_environment`."""
    with tempfile.TemporaryDirectory(prefix="ggufmap-survey-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        request = {"survey": "model", "model_dir": folder, "world": asdict(world), "draft": draft}
        return _survey(request, world.device)


def _survey(request: dict[str, Any], device: str) -> dict[str, Any]:
    try:
        return _ask(request, _environment(device), "ended")
    except MissingDependencyError as e:
        first, _, rest = e.message.strip().partition("\n")
        raise MissingDependencyError(f"{first} {last_words(rest)}".rstrip(), hint=e.hint) from e


def _environment(device: str) -> dict[str, str]:
    """The worker's environment; a simulated GPU needs the stub driver, where there is no real one.

    Raises MissingDependencyError when this vLLM has no CUDA classes to trace.
    """
    environment = {**_QUIET, **os.environ}
    if device.startswith("sm_"):
        if not compat.has_cuda_build():
            raise MissingDependencyError(
                f"--device {device} needs vLLM's CUDA build, found {compat.vllm_version() or 'none'} for the CPU",
                hint="scripts/cuda-dryrun MODEL makes an environment with it (9.4 GB, no GPU needed) and audits there.",
            )
        path = [str(_STUB_FOLDER)] if _STUB_FOLDER.is_dir() else []
        environment["LD_LIBRARY_PATH"] = ":".join([*path, *filter(None, [environment.get("LD_LIBRARY_PATH")])])
    return environment


def _ask(
    request: dict[str, Any],
    environment: dict[str, str],
    failed: str = "vLLM could not build the model for the trace",
) -> dict[str, Any]:
    try:
        done = subprocess.run(
            # -P: nothing is imported from the current folder, which may be a downloaded one.
            [sys.executable, "-P", "-m", "ggufmap.target.worker"],
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise MissingDependencyError(f"vLLM did not answer the trace within {_TIMEOUT_S} s", hint=_BUSY) from e
    if done.returncode != 0 or not done.stdout:
        tail = "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
        raise MissingDependencyError(
            f"{failed} (exit {done.returncode}):\n{tail}",
            hint="--offline checks the names by the rows alone.",
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _result(answer: dict[str, Any]) -> TraceResult:
    draft, packing = answer.pop("draft"), answer.pop("packing")
    return TraceResult(
        target=_model(answer.pop("target")),
        draft=None if draft is None else _model(draft),
        draft_names=frozenset(answer.pop("draft_names")),
        packing=None if packing is None else Packing(frozenset(packing["types"]), packing["problem"]),
        **answer,
    )


def _model(answer: dict[str, Any]) -> ModelTrace:
    parameters = {
        name: Parameter(tuple(p["shape"]), p["dtype"], p["written"], p["problem"])
        for name, p in answer.pop("parameters").items()
    }
    uses = {name: tuple(ParameterUse(**use) for use in found) for name, found in answer.pop("uses").items()}
    modules = {path: Module(m["kind"], tuple(m["prefixes"]), m["problem"]) for path, m in answer.pop("modules").items()}
    rewritten = frozenset(answer.pop("rewritten"))
    return ModelTrace(parameters=parameters, uses=uses, modules=modules, rewritten=rewritten, **answer)
