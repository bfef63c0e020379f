"""The whole conformance matrix: every check of every case, kept as JSON, and docs/architectures.md out of that alone.

A check's result is `{"state": "yes" | "no" | "impossible" | "not tried", "details": [...]}`. What goes wrong in one
case, an exception or a dead engine, is that case's result and stops nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import harness
from families.tracing import Tracer

from support import architectures_page, assets, conformance
from support.conformance import Case, Made

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architectures.md"
CHECKS = ("a", "b", "c", "g", "d", "e")
DEVICE = "sm_100"
CUDA_ENV = "GGUFMAP_CUDA_ENV"
_BATCH = 5  # cases whose engines share one process
_PLAIN_CHECKS: dict[str, Callable[[Made, Path], list[str]]] = {}
Result = dict[str, Any]


def _values(made: Made, folder: Path) -> list[str]:
    small = conformance.make(made.case, folder / "bf16", "bfloat16")
    return conformance.check_values(made) + [f"bf16: {line}" for line in conformance.check_values(small)]


_PLAIN_CHECKS = {"a": _values, "b": lambda made, _: conformance.check_config(made), "e": conformance.check_quantised}


def state(name: str, details: Sequence[str] = ()) -> dict[str, Any]:
    """A check's result."""
    return {"state": name, "details": [line[:400] for line in details][:12]}


def attempt(check: Callable[[], list[str]]) -> dict[str, Any]:
    """The result of a check that lists problems; an exception is a problem."""
    try:
        problems = check()
    except Exception as e:
        problems = [f"{type(e).__name__}: {' '.join(str(e).split())[-380:]}"]
    return state("no" if problems else "yes", problems)


def run_case(
    case: Case, folder: Path, tracers: Mapping[str, Tracer], peer: Path | None = None
) -> tuple[Result, Made | None]:
    """Checks a, b, e of one case, c and g where there is a tracer; `Made` for (d), None when the converter fails."""
    result: Result = {
        "name": case.name,
        "class": case.vllm_class or case.model_class,
        "note": case.note,
        "ignored": sorted(case.ignore),
        "source": source_digest(),
        **{check: state("not tried") for check in CHECKS},
    }
    made: Made | None = None

    def convert() -> list[str]:
        nonlocal made
        made = conformance.make(case, folder)
        return []

    converted = attempt(convert)
    if made is None:
        return {**result, "a": converted, "error": "the converter fails"}, None
    for name, check in _PLAIN_CHECKS.items():
        result[name] = attempt(lambda check=check: check(made, folder))  # type: ignore[misc]
    result |= _facts(made)
    if case.not_traced:
        result["c"] = state("impossible", [case.not_traced])
    elif "c" in tracers:
        result["c"] = attempt(lambda: _trace(made, result, tracers["c"]))
    if peer is not None:
        result["peer"] = _peer(made, peer)
    if "g" in tracers:
        result["g"] = _on_gpu(made, result, tracers["g"])
    if case.not_run or case.not_traced:
        result["d"] = state("impossible", [case.not_run or case.not_traced])
    return result, made


def _facts(made: Made) -> Result:
    """What the page says of the file besides the checks."""
    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.mapping import resolve

    try:
        with open_checkpoint(made.gguf) as checkpoint:
            facts = {"architecture": checkpoint.architecture, "tensors": len(checkpoint.tensors)}
            plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(made.gguf)))
            return {**facts, "draft_blocks": plan.model.draft_blocks}
    except Exception as e:
        return {"error": str(e)[:400]}


def _on_gpu(made: Made, result: Result, tracer: Tracer) -> dict[str, Any]:
    """(g): as (c), with vLLM's classes for a GPU. Its kernels set limits to sizes that a tiny model may miss."""
    found = attempt(lambda: _trace(made, result, tracer))
    if any("MLA" in line and "supported" in line for line in found["details"]):  # vLLM's list of its attention kernels
        return state("impossible", ["no attention kernel has this tiny model's head sizes"])
    if found["state"] == "no" and made.case.not_traced:
        return state("impossible", [made.case.not_traced])
    return found


def _peer(made: Made, peer: Path) -> dict[str, Any]:
    """What vllm-gguf-plugin (installed in the folder `peer`) makes of the same file: see `peer_runner.py`."""
    answer = made.gguf.with_suffix(".peer.json")
    command = [sys.executable, str(Path(__file__).with_name("peer_runner.py")), made.folder, made.gguf, answer]
    environment = {**os.environ, "PYTHONPATH": str(peer), "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        return {"refuses": "".join(done.stderr.strip().splitlines()[-1:])[:300]}
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def _trace(made: Made, result: Result, tracer: Tracer) -> list[str]:
    """(c) or (g), and which class the draft is."""
    found = tracer(made.gguf)
    trace = found.plan.trace
    assert trace is not None
    result["traced"] = {"class": trace.target.class_name, "parameters": len(trace.target.parameters)}
    if trace.draft is not None:
        result["traced"] |= {"draft": trace.draft.class_name, "draft_parameters": len(trace.draft.parameters)}
    return found.plan.problems()


def run_engines(batch: Sequence[tuple[Result, Made]], folder: Path) -> None:
    """(d) for a batch of cases in one process; case by case when that process dies."""
    jobs, ready = [], []
    for result, made in batch:
        try:
            ours = harness.model_dir(made.gguf, folder / f"{made.case.name}-dir")
        except Exception as e:
            result["d"] = state("no", [f"{type(e).__name__}: {e}"])
            continue
        for where, load_format in ((made.folder, "auto"), (ours, "ggufmap")):
            options = {"dtype": made.case.run_dtype, "no_torchvision": made.case.no_torchvision}
            jobs.append(harness.job(where, load_format, made.case.name, may_fail=True, **options))
        ready.append((result, made))
    if not jobs:
        return
    try:
        answers = harness.run_worker("vllm_worker", {"jobs": jobs})["results"]
    except (AssertionError, OSError) as e:
        if len(ready) > 1:
            for one in ready:
                run_engines([one], folder)
        else:
            ready[0][0]["d"] = state("no", [f"the engine died: {str(e)[-300:]}"])
        return
    for (result, _), original, ours in zip(ready, answers[::2], answers[1::2], strict=True):
        result["d"] = _compare(original, ours)


def _compare(original: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    errors = [
        f"{who}: {a['type']}: {a['error']}" for who, a in (("original", original), ("ours", ours)) if "error" in a
    ]
    if errors:
        return state("no", [" ".join(line.split()) for line in errors])
    same = original["tokens"] == ours["tokens"]
    return state("yes") if same else state("no", [f"{original['tokens'][0]} became {ours['tokens'][0]}"])


def source_digest() -> str:
    """Of ggufmap's own sources: tells which results are of this state of them."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "ggufmap").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def finished(result: Result, wanted: Sequence[str]) -> bool:
    """Whether every wanted check has passed or cannot be done."""
    return all(result.get(check, {}).get("state") in ("yes", "impossible") for check in wanted)


def run(
    cases: Sequence[Case], store: Path, wanted: Sequence[str], *, reuse: bool, peer: Path | None = None
) -> Iterator[Result]:
    """Run the wanted checks of the cases, batch by batch; each result is written to `store` as it is known."""
    kept = load(store)
    old = kept if reuse else {}
    todo = [case for case in cases if not (case.name in old and finished(old[case.name], wanted))]
    yield from (old[case.name] for case in cases if case not in todo)
    tracers = {"c": Tracer()} if "c" in wanted else {}
    if "g" in wanted:
        tracers["g"] = Tracer(Path(os.environ[CUDA_ENV]), DEVICE)
    for start in range(0, len(todo), _BATCH):
        folder = Path(tempfile.mkdtemp(prefix="ggufmap-matrix-"))
        try:
            done = [run_case(case, folder / case.name, tracers, peer) for case in todo[start : start + _BATCH]]
            runnable = [(r, made) for r, made in done if made is not None and r["d"]["state"] == "not tried"]
            if "d" in wanted:
                run_engines([x for x in runnable if x[0]["a"]["state"] == "yes"], folder)
            for result, _ in done:
                if peer is None and "peer" in kept.get(result["name"], {}):
                    result["peer"] = kept[result["name"]]["peer"]  # of a fixed version: it does not change
                (store / f"{result['name']}.json").write_text(json.dumps(result, indent=1))
                yield result
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for tracer in tracers.values():
        tracer.close()


def load(store: Path) -> dict[str, Result]:
    """All results in `store`, by case name."""
    untried = {check: state("not tried") for check in CHECKS}  # results of a time when there was no such check
    return {file.stem: untried | json.loads(file.read_text()) for file in sorted(store.glob("*.json"))}


def _chosen(names: Sequence[str], shard: str) -> list[Case]:
    cases = conformance.all_cases()
    unknown = [name for name in names if name != "all" and name not in cases]
    if unknown:
        raise SystemExit(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    chosen = list(cases.values()) if not names or "all" in names else [cases[name] for name in names]
    index, _, count = shard.partition("/")
    return chosen[int(index) - 1 :: int(count)] if shard else chosen


def _say(result: Result) -> None:
    marks = " ".join(f"{check}:{result[check]['state']}" for check in CHECKS)
    print(f"{result['name']:28} {marks}" + (f" peer:{result['peer']}" if "peer" in result else ""), flush=True)
    for check in CHECKS:
        if result[check]["state"] == "no":
            print("".join(f"    {check} {line}\n" for line in result[check]["details"]), end="", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `scripts/conformance`."""
    parser = argparse.ArgumentParser(prog="conformance", description="Run the conformance matrix and write its page.")
    parser.add_argument("names", nargs="*", help="cases, or all (the default)")
    parser.add_argument("--skip-trace", action="store_true", help="leave out (c), vLLM's load_weights")
    parser.add_argument("--skip-run", action="store_true", help="leave out (d), the engines")
    parser.add_argument("--gpu", action="store_true", help=f"also (g); ${CUDA_ENV} is what scripts/cuda-dryrun made")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="also what vllm-gguf-plugin, installed there, does")
    parser.add_argument("--reuse", action="store_true", help="keep earlier results where everything has passed")
    parser.add_argument("--shard", default="", metavar="I/N", help="only every Nth case, from the Ith")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results of this run there")
    parser.add_argument("--page-only", action="store_true", help="run nothing, write the page from the kept results")
    options = parser.parse_args(arguments)
    store = assets.llama_cpp_dir().parent / "conformance"
    store.mkdir(parents=True, exist_ok=True)
    left_out = {"c"} if options.skip_trace else set()
    left_out |= {"d"} if options.skip_run else set()
    left_out |= set() if options.gpu else {"g"}
    started = time.monotonic()
    results: list[Result] = []
    if not options.page_only:
        wanted = [check for check in CHECKS if check not in left_out]
        for result in run(_chosen(options.names, options.shard), store, wanted, reuse=options.reuse, peer=options.peer):
            _say(result)
            results.append(result)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
    known = conformance.all_cases()
    kept = {name: result for name, result in load(store).items() if name in known}
    PAGE.write_text(architectures_page.render(kept, known, source_digest()))
    failed = sum(any(result[check]["state"] == "no" for check in CHECKS) for result in results)
    summary = f"{len(results)} cases, {failed} with problems, {time.monotonic() - started:.0f} s"
    print(f"{summary}; {PAGE.relative_to(ROOT)} is of {len(kept)} of {len(known)} cases", file=sys.stderr)
    return 1 if failed else 0
