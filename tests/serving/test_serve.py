"""The `vllm serve` wrapper: its command, its gate, and what it leaves to the user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.converter import TinyFactory

from ggufmap.archs import find_architecture
from ggufmap.errors import MappingError, UsageError
from ggufmap.mapping.plan import Role, StorageGroup, StoragePlan, Unmapped
from ggufmap.modeldir.manifest import Packed, read_manifest
from ggufmap.serving.preflight import Preflight, preflight
from ggufmap.serving.serve import (
    ServeCommand,
    check_gate,
    online_quantisation,
    serve_command,
    speculative_config,
    vllm_world,
)
from ggufmap.target.devices import World


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)


@pytest.fixture
def found(tiny: TinyFactory) -> Iterator[Preflight]:
    result = preflight(tiny("qwen3")[1], offline=True)
    with result.checkpoint:
        yield result


def bad(found: Preflight) -> Preflight:
    return replace(found, plan=replace(found.plan, unmapped=(Unmapped("x", "y"), Unmapped("z", "y"))))


def value(command: ServeCommand, option: str) -> str:
    return command.arguments[command.arguments.index(option) + 1]


def folder(command: ServeCommand) -> Path:
    (made,) = [x for x in command.arguments if "/cache/models/" in x]
    return Path(made)


def test_the_command(found: Preflight) -> None:
    command = serve_command(found, ["--port", "8001"])
    assert command.arguments[0] == sys.executable
    assert value(command, "--load-format") == "ggufmap"
    assert value(command, "--served-model-name") == command.served_name == found.checkpoint.path.stem
    assert command.arguments[-2:] == ("--port", "8001")
    assert command.environment == {}
    assert read_manifest(folder(command)).gguf == found.checkpoint.path.resolve()
    assert "--speculative-config" not in command.arguments


@pytest.mark.parametrize("given", [["--served-model-name", "mine"], ["--served-model-name=mine"]])
def test_a_name_that_the_user_gives_is_kept(found: Preflight, given: list[str]) -> None:
    command = serve_command(found, given)
    assert command.served_name == "mine"
    assert sum(x.startswith("--served-model-name") for x in command.arguments) == 1


def test_the_name_of_a_set_has_no_split_number(tiny: TinyFactory) -> None:
    _, path = tiny("llama", extra=("--split-max-tensors", "8"))
    result = preflight(path, offline=True)
    with result.checkpoint:
        assert path.stem.endswith("-00001-of-00004")
        assert serve_command(result, []).served_name == path.stem.removesuffix("-00001-of-00004")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--load-format", "auto"], "Leave it out."),
        (["--load-format=auto"], "Leave it out."),
        (["--model", "x"], "Leave it out."),
        (["--tokenizer", "x"], "Give --tokenizer DIR before the `--`."),
        (["--hf-config-path=x"], "Give --hf-config DIR before the `--`."),
        (["--port", "1", "--model-loader-extra-config", "{}"], "Leave it out."),
    ],
)
def test_options_that_ggufmap_sets_are_refused_with_the_way(found: Preflight, options: list[str], hint: str) -> None:
    with pytest.raises(UsageError, match=r"is set by ggufmap serve itself") as e:
        serve_command(found, options)
    assert e.value.hint == hint


def test_a_tokenizer_is_taken_along(found: Preflight, tiny: TinyFactory) -> None:
    model = tiny("qwen3")[0].folder
    made = folder(serve_command(found, [], tokenizer=model))
    assert (made / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        (None, {}),
        ("", {"VLLM_PLUGINS": "ggufmap"}),
        ("other", {"VLLM_PLUGINS": "other,ggufmap"}),
        ("other,ggufmap", {}),
        ("ggufmap", {}),
    ],
)
def test_a_list_of_allowed_plugins_gets_ours(
    found: Preflight, monkeypatch: pytest.MonkeyPatch, plugins: str | None, expected: dict[str, str]
) -> None:
    if plugins is not None:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    assert serve_command(found, []).environment == expected


def test_a_good_plan_passes_the_gate(found: Preflight) -> None:
    assert check_gate(found, ["--dtype", "half"], force=False) == []


def test_a_bad_plan_does_not_but_by_force(found: Preflight) -> None:
    with pytest.raises(MappingError, match=f"not served: the mapping of {found.checkpoint.path} has 2 problems") as e:
        check_gate(bad(found), [], force=False)
    assert e.value.exit_code == 1
    assert check_gate(bad(found), [], force=True) == [e.value.message]


@pytest.mark.parametrize("options", [["--dtype", "half"], ["--dtype=float16"], ["--x", "--dtype", "fp16"]])
def test_fp16_is_refused_for_families_that_leave_its_range(found: Preflight, options: list[str]) -> None:
    gemma = replace(found, architecture=find_architecture("gemma3", "m.gguf"))
    with pytest.raises(UsageError, match=r"not served: --dtype \w+: Gemma 3 activations exceed fp16's range") as e:
        check_gate(gemma, options, force=False)
    assert e.value.exit_code == 2 and "bfloat16" in str(e.value.hint)
    assert len(check_gate(gemma, options, force=True)) == 1
    assert len(check_gate(bad(gemma), options, force=True)) == 2
    for fine in ([], ["--dtype", "bfloat16"], ["--dtype", "auto"], ["--dtype"]):
        assert check_gate(gemma, fine, force=False) == []


def test_no_draft_no_speculation(found: Preflight) -> None:
    assert speculative_config(found, []) is None
    with pytest.raises(UsageError, match=r"--num-speculative-tokens 3: .* has no draft block") as e:
        speculative_config(found, [], tokens=3)
    assert "--draft" in str(e.value.hint)


def test_a_draft_is_used_unless_somebody_says_otherwise(found: Preflight) -> None:
    drafted = replace(found, plan=replace(found.plan, model=replace(found.plan.model, draft_blocks=2)))
    assert speculative_config(drafted, []) == {"method": "mtp", "num_speculative_tokens": 2}
    assert speculative_config(drafted, [], tokens=1) == {"method": "mtp", "num_speculative_tokens": 1}
    assert speculative_config(drafted, [], enabled=False) is None
    assert speculative_config(drafted, ["--speculative-config", "{}"]) is None
    command = serve_command(drafted, [], speculation={"method": "mtp", "num_speculative_tokens": 2})
    assert value(command, "--speculative-config") == '{"method": "mtp", "num_speculative_tokens": 2}'


@pytest.mark.parametrize(
    ("options", "ranks", "experts"),
    [
        (["-tp", "2"], 2, False),
        (["--tensor-parallel-size=8", "--enable-expert-parallel"], 8, True),
        (["--tensor_parallel_size", "4"], 4, False),
        (["--enable_expert_parallel"], 1, True),
    ],
)
def test_the_trace_is_of_one_of_the_users_ranks(options: list[str], ranks: int, experts: bool) -> None:
    assert vllm_world(options) == World("", ranks, experts)


def test_one_rank_is_no_special_world() -> None:
    assert vllm_world([]) is None and vllm_world(["-tp", "1", "--port", "2"]) is None
    with pytest.raises(UsageError, match="--tensor-parallel-size x: a number is expected"):
        vllm_world(["-tp", "x"])


def test_vllms_own_quantisation_is_seen() -> None:
    assert online_quantisation(["--quantization", "fp8"]) == "fp8" == online_quantisation(["-q=fp8"])
    assert online_quantisation([]) is None
    with pytest.raises(UsageError, match="--quantization gguf is set by ggufmap serve itself"):
        online_quantisation(["--quantization", "gguf"])


def test_what_is_packed_stands_in_the_manifest_and_makes_another_folder(found: Preflight) -> None:
    dense = folder(serve_command(found, []))
    assert read_manifest(dense).packed == {}
    group = StorageGroup(
        Role.TARGET, "lm_head", ("output.weight",), ("Q8_0",), True, "", 1, 2, {"lm_head": {"": "Q8_0"}}
    )
    storage = StoragePlan("auto", (group,))
    packed = folder(serve_command(replace(found, plan=replace(found.plan, storage=storage)), []))
    assert packed != dense
    assert read_manifest(packed).packed == {"target": Packed(("output.weight",), {"lm_head": {"": "Q8_0"}})}
