"""Checks of disk and memory: how long the file takes to read, and whether what it becomes has room."""

from __future__ import annotations

from collections.abc import Iterator

from ggufmap.doctor.facts import Facts, Model
from ggufmap.doctor.finding import Finding, note, ok, problem, warning
from ggufmap.mapping.memory import model_bytes
from ggufmap.report.patterns import size
from ggufmap.serving.memory import DEFAULT, parse_size

_LONG_S = 600
_PER_PROCESS = parse_size(DEFAULT, "--max-host-memory")
_LIMIT = f"{_PER_PROCESS >> 20} MiB"


def disk(facts: Facts) -> Iterator[Finding]:
    """The measured speed, and what it means for the whole file."""
    if facts.model is None:
        return
    speed = facts.model.speed
    if speed is None:
        yield note("disk", "not measured: the file is not on a disk here", "a copy on a local disk loads faster")
    elif not speed.rate:
        yield note("disk", "not measured: there was nothing to read")
    else:
        seconds = speed.total / speed.rate
        rate = f"{size(round(speed.rate))}/s ({size(speed.sampled)} read {speed.how})"
        found = f"{rate}: {_time(seconds)} for {size(speed.total)}"
        if speed.holes:
            yield note(
                "disk",
                f"{found}; most of the file is holes that no disk reads",
                "measure the whole file, once it is here",
            )
        elif seconds > _LONG_S:
            yield warning("disk", found, "copy the file to a local NVMe disk: the load cannot be faster than this")
        else:
            yield ok("disk", found)


def memory(facts: Facts) -> Iterator[Finding]:
    """What the weights need on each rank, against what is free."""
    model = facts.model
    if model is None:
        return
    need = needed(model)
    if need is None:
        found = f"not known without a trace; the file has {size(model.found.plan.model.nbytes)}"
        yield note("memory", found, "the findings above say what vLLM lacks")
        return
    ranks = model.world.tensor_parallel
    where = f"{size(need)} of weights per rank at TP {ranks}"
    if facts.environment.gpus and not facts.device:
        yield from _on_gpus(facts, need, where)
        yield from _on_host(facts, _PER_PROCESS * ranks, f"{ranks} x {_LIMIT} beside the weights while they load")
    elif facts.device:
        yield note("memory", f"{where}; {facts.device} is simulated, so there is nothing to hold it against")
    else:
        whole = (need + _PER_PROCESS) * ranks
        yield from _on_host(facts, whole, f"{where}, all on this machine, and {_LIMIT} per rank while they load")


def needed(model: Model) -> int | None:
    """Bytes of the parameters on one rank, target and draft, as they were traced; None without a trace."""
    trace = model.found.plan.trace
    if trace is None:
        return None
    return sum(model_bytes(part) for part in (trace.target, trace.draft) if part is not None)


def _on_gpus(facts: Facts, need: int, where: str) -> Iterator[Finding]:
    share = facts.environment.gpu_memory_utilization
    used = facts.environment.gpus[: facts.model.world.tensor_parallel if facts.model else 1]
    total, free = min(gpu.total for gpu in used), min(gpu.free for gpu in used)
    budget = int(total * share)
    there = f"vLLM takes {share:.0%} of {size(total)} per GPU, {size(free)} are free"
    if need > budget:
        remedy = "more ranks (--tp), --storage packed where it can be, or a smaller quantisation"
        yield problem("memory", f"{where}, and {there}", remedy)
    elif budget > free:
        remedy = f"end what else uses the GPU, or serve with -- --gpu-memory-utilization {free / total * 0.98:.2f}"
        yield problem("memory", f"{where}; {there}: vLLM does not start", remedy)
    else:
        rest = f"{size(budget - need)} are left for activations and the KV cache"
        tight = budget - need < budget // 10
        remedy = "more ranks (--tp), or a shorter --max-model-len"
        yield (
            warning("memory", f"{where}; {there}; {rest}", remedy)
            if tight
            else ok("memory", f"{where}; {there}; {rest}")
        )


def _on_host(facts: Facts, need: int, what: str) -> Iterator[Finding]:
    host = facts.host
    limit = f", this container is limited to {size(host.limit)}" if host.limit is not None else ""
    there = f"{size(host.usable)} of {size(host.total)} are free{limit}"
    if need > host.usable:
        remedy = "raise the container's limit, free memory, or use more machines; --max-host-memory SIZE takes less"
        yield problem("memory", f"needs {size(need)} of host memory ({what}); {there}", remedy)
    else:
        yield ok("memory", f"needs {size(need)} of host memory ({what}); {there}")


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """/dev/shm, through which the ranks of one machine talk."""
    ranks = 1 if facts.model is None else facts.model.world.tensor_parallel
    queue, free = facts.environment.queue_bytes, facts.host.shm_free
    if ranks == 1 or not queue:
        return
    need = queue * (ranks + 1)  # one to all ranks, one back from each
    found = f"/dev/shm has {size(free)} free; vLLM's queues for {ranks} ranks may take {size(need)}"
    if free < need:
        remedy = "docker run --ipc=host or --shm-size=16g; Kubernetes: an emptyDir with medium Memory at /dev/shm"
        yield warning("shm", found, remedy)
    else:
        yield ok("shm", found)


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
