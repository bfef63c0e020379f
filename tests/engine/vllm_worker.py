"""Runs vLLM engines in this process, one after the other: `vllm_worker.py REQUEST.json ANSWER.json`.

The request is {"jobs": [...], "sabotage": name or null}. A job is
{"model", "load_format", "dtype", "prompts", "max_tokens"} and perhaps "prompt_logprobs" (how many), "options" (for the
engine), "no_torchvision", "may_fail", and the faults "broken_transform", "forget", "double". Its result is
{"tokens", "logprobs", "prompt", "seconds"}, or {"error", "type"} when it may fail. The answer also says what our plugin
did.

One process for several engines: importing vLLM is most of an engine's start. It is no module of the tests: vLLM keeps
process-wide state that pytest's process must not have.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any
from unittest.mock import patch

from in_turn import clean_up, collect_at_the_end

# The engine in this process, or its loads could neither be counted nor sabotaged.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

Job = dict[str, Any]


class _Refuse(MetaPathFinder):
    """Makes the import of some packages fail, as if they were broken or not installed."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(name == x or name.startswith(x + ".") for x in self._names):
            raise ImportError(f"{name} is broken on purpose")


def sabotage(kind: str | None) -> None:
    """Break our plugin, as an upgrade of something else might."""
    refused = {"plugin": ["ggufmap.serving.plugin"], "loader": ["ggufmap.serving.loader"], "gguf": ["gguf", "libgguf"]}
    if kind in refused:
        sys.meta_path.insert(0, _Refuse(*refused[kind]))
    elif kind == "register":
        from vllm.model_executor import model_loader

        def register_model_loader(_: str) -> Any:
            raise RuntimeError("register_model_loader is broken on purpose")

        model_loader.register_model_loader = register_model_loader
    elif kind is not None:
        raise ValueError(kind)


def load_plugins() -> dict[str, Any]:
    """Load vLLM's plugins as every vLLM process does; what that took, and the modules that are there then."""
    import vllm.engine.arg_utils  # noqa: F401 - what comes before the plugins in every process
    from vllm import plugins

    started = time.perf_counter()
    plugins.load_general_plugins()
    seconds = time.perf_counter() - started
    # A load format cannot be registered without it, and every process that loads a model imports it.
    from vllm.model_executor import model_loader

    formats = sorted(model_loader._LOAD_FORMAT_TO_MODEL_LOADER)
    return {"seconds": seconds, "formats": formats, "modules": sorted(sys.modules)}


def run_job(job: Job) -> dict[str, Any]:
    """Start an engine, generate greedily, take the engine down."""
    from vllm import LLM, SamplingParams

    if job.get("no_torchvision"):
        from ggufmap.target import compat

        compat.stand_in_for_torchvision()
        compat.look_at_models_here()
    started = time.perf_counter()
    with _faults(job):
        llm = LLM(
            job["model"],
            load_format=job["load_format"],
            dtype=job.get("dtype", "float32"),
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
            **{"max_model_len": 128, "max_num_seqs": 4, **job.get("options", {})},
        )
    loaded = time.perf_counter()
    sampling = SamplingParams(
        max_tokens=job["max_tokens"],
        temperature=0.0,
        logprobs=1,
        prompt_logprobs=job.get("prompt_logprobs"),
        detokenize=False,
        ignore_eos=True,
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    generated = time.perf_counter()
    result = {
        "tokens": [list(o.outputs[0].token_ids) for o in outputs],
        "logprobs": [
            [step[token].logprob for step, token in zip(o.outputs[0].logprobs, o.outputs[0].token_ids, strict=True)]
            for o in outputs
        ],
        "prompt": [_prompt(o) for o in outputs] if job.get("prompt_logprobs") else None,
        "seconds": {"start": loaded - started, "generate": generated - loaded},
    }
    del outputs, llm
    clean_up()
    return result


@contextmanager
def _faults(job: Job) -> Iterator[None]:
    """What goes wrong in this load: a value transform that does nothing, tensors that the plan forgets or doubles."""
    with ExitStack() as stack:
        if "forget" in job or "double" in job:
            stack.enter_context(_faulty_plan(set(job.get("forget", ())), set(job.get("double", ()))))
        if "broken_transform" in job:
            from ggufmap.stream.transforms import APPLY

            stack.enter_context(patch.dict(APPLY, {job["broken_transform"]: lambda tensors, _: list(tensors)}))
        yield


def _faulty_plan(forget: set[str], double: set[str]) -> Any:
    from ggufmap import mapping

    resolve = mapping.resolve

    def faulty_resolve(*args: Any) -> Any:
        plan = resolve(*args)
        kept = [a for a in plan.assignments if not forget & set(a.tensors)]
        twice = [a for a in plan.assignments if double & set(a.tensors)]
        return replace(plan, assignments=(*kept, *twice))

    return patch.object(mapping, "resolve", faulty_resolve)


def _prompt(output: Any) -> dict[str, list[Any]]:
    """For each position but the last: the next token's log-probability, the likeliest token, all that were asked."""
    steps = list(zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True))
    return {
        "logprobs": [step[token].logprob for token, step in steps],
        "top": [next(token for token, x in step.items() if x.rank == 1) for _, step in steps],
        "candidates": [{token: x.logprob for token, x in step.items()} for _, step in steps],
    }


def _place(error: Exception) -> str:
    """Where an exception that says nothing comes from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}"


def run_all(request: dict[str, Any]) -> dict[str, Any]:
    collect_at_the_end()
    sabotage(request.get("sabotage"))
    answer: dict[str, Any] = {"plugin": load_plugins(), "results": []}
    for job in request["jobs"]:
        try:
            answer["results"].append(run_job(job))
            continue
        except Exception as e:
            if not job.get("may_fail"):
                raise
            answer["results"].append({"error": str(e) or _place(e), "type": type(e).__name__})
        clean_up()  # here, where the exception no longer keeps the engine alive
    answer["modules"] = sorted(sys.modules)
    return answer


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(run_all(request)))
    # Skip interpreter shutdown: the process groups would only warn about not being destroyed.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
