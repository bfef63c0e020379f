"""Runs vLLM engines with MTP drafts, one after the other: `mtp_worker.py REQUEST.json ANSWER.json`.

The request is {"jobs": [...]}; a job is {"model", "load_format", "dtype", "prompts", "max_tokens", "speculative",
"tensor_parallel"} and perhaps "misroute". Its result is {"tokens", "drafted", "accepted", "shared", "deferred",
"draft_bytes", "seconds"}, or {"error", "type"} for a job that misroutes. No module of the tests.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from in_turn import clean_up, collect_at_the_end

Job = dict[str, Any]

DEFERRED: dict[str, int] = {}
"""Module of the draft -> bytes that ggufmap did not allocate, in the engine that started last."""


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    if all(job["tensor_parallel"] == 1 for job in request["jobs"]):
        # The engine in this process, so that its models can be looked at.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    collect_at_the_end()
    _note_deferred()
    results = [misrouted(job) if job.get("misroute") else run_job(job) for job in request["jobs"]]
    Path(sys.argv[2]).write_text(json.dumps({"results": results}))
    # Skip interpreter shutdown: the process groups would only warn about not being destroyed.
    sys.stderr.flush()
    os._exit(0)


def run_job(job: Job) -> Job:
    """Start an engine, generate greedily, take the engine down."""
    from vllm import LLM, SamplingParams

    DEFERRED.clear()
    started = time.perf_counter()
    llm = LLM(
        job["model"],
        load_format=job["load_format"],
        dtype=job["dtype"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,  # the counters of speculative decoding
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,  # an engine runs as many once before it starts
        tensor_parallel_size=job["tensor_parallel"],
        speculative_config=job["speculative"],
    )
    loaded = time.perf_counter()
    shared, draft_bytes = _draft(llm) if job["tensor_parallel"] == 1 else ([], 0)
    before = _counters(llm)
    sampling = SamplingParams(max_tokens=job["max_tokens"], temperature=0.0, detokenize=False, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], sampling, use_tqdm=False)
    after = _counters(llm)
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "shared": shared,
        "deferred": dict(DEFERRED),
        "draft_bytes": draft_bytes,
        "seconds": {"start": loaded - started, "generate": time.perf_counter() - loaded},
        **{key: after[key] - before[key] for key in after},
    }
    del outputs, llm
    clean_up()
    return result


def misrouted(job: Job) -> Job:
    """The job with every tensor of the draft given to the target; what stopped it."""
    from ggufmap.mapping import resolver
    from ggufmap.mapping.plan import Role

    real = resolver._role
    resolver._role = lambda state, name: Role.TARGET
    try:
        run_job(job)
        return {"error": None, "type": None}
    except Exception as e:
        return {"error": str(e), "type": type(e).__name__}
    finally:
        resolver._role = real
        clean_up()


def _note_deferred() -> None:
    """Let ggufmap's loader tell what it does not allocate."""
    from ggufmap.target import defer

    detach = defer.Deferred.detach

    def noting(self: Any, model: Any) -> dict[str, int]:
        found = detach(self, model)
        DEFERRED.update(found)
        return found

    defer.Deferred.detach = noting  # type: ignore[method-assign]


def _draft(llm: Any) -> tuple[list[str], int]:
    """Vocabulary modules that target and draft have in common, and the bytes of the draft's own parameters."""
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    target, draft = runner.model, runner.drafter.model
    owners = {id(module): name for name, module in target.named_modules()}
    kinds = ("embed_tokens", "head")
    same = {name: owners.get(id(module)) for name, module in draft.named_modules() if name.endswith(kinds)}
    shared = sorted(f"{name} is {owner}" for name, owner in same.items() if owner and name.split(".")[-1] in kinds)
    theirs = {parameter.data_ptr() for parameter in target.parameters()}
    own = {p.data_ptr(): p.numel() * p.element_size() for p in draft.parameters() if p.data_ptr() not in theirs}
    return shared, sum(own.values())


def _counters(llm: Any) -> dict[str, int]:
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    names = {"drafted": "vllm:spec_decode_num_draft_tokens", "accepted": "vllm:spec_decode_num_accepted_tokens"}
    return {key: values.get(name, 0) for key, name in names.items()}


if __name__ == "__main__":
    main()
