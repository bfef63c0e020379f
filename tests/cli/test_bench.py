"""`ggufmap bench`: a load measured beside the machine's limits, and the memory option of the commands that load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import Cli

from ggufmap.checkpoint import open_checkpoint
from ggufmap.native import native
from ggufmap.stream import dequantise

MIB = 1 << 20


def test_bench_measures_a_load_without_vllm(without_vllm: Cli, model: Path) -> None:
    done = without_vllm("bench", model, "--json", "--dtype", "float32", "--max-host-memory", "16Mi")
    assert done.code == 0, done.err
    with open_checkpoint(model) as checkpoint:
        tensors = list(checkpoint.tensors.values())
    found = done.json
    assert found["stored_bytes"] == sum(tensor.nbytes for tensor in tensors)
    assert found["destination_bytes"] == 4 * sum(tensor.elements for tensor in tensors)
    assert 0 < found["memory_peak"] <= found["memory_limit"] == 16 * MIB
    assert found["bound_s"] == found["read_s"] + found["write_s"] > 0
    assert found["load_s"] >= (found["stage_read_s"] + found["stage_copy_s"]) / (found["threads"] + 1) > 0


def test_bench_of_the_start_of_a_real_file(cli: Cli, gemma: Path) -> None:
    """The embedding alone: 170 MB of Q8_0, in 340 MB of bfloat16, within 64 MiB."""
    done = cli("bench", gemma, "--bytes", "200M", "--max-host-memory", "64Mi", "--json")
    assert done.code == 0, done.err
    assert 170e6 < done.json["stored_bytes"] <= 200e6
    assert done.json["memory_peak"] <= 64 * MIB
    assert done.json["stage_decode_s"] > 0
    assert done.json["compiler"] == (native().compiler if native().library else None)


def test_bench_says_when_libgguf_decodes(cli: Cli, gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the library is there, and one of its decoders was refused."""
    monkeypatch.setattr(dequantise, "_compiled", lambda type: None)
    done = cli("bench", gemma, "--bytes", "180M", "--json")
    assert done.code == 0 and done.json["compiler"] is None
    assert "decoded by libgguf" in cli("bench", gemma, "--bytes", "180M").out


def test_bench_for_a_person(cli: Cli, model: Path) -> None:
    done = cli("bench", model)
    assert done.code == 0, done.err
    for words in ("load", "decode", "limit: read, again", "limit: write", "x the time of reading every byte"):
        assert words in done.out


@pytest.mark.parametrize("command", [("bench",), ("export", "-o", "OUT"), ("serve", "--offline", "--dry-run")])
@pytest.mark.parametrize(("size", "message"), [("lots", "a number with K, M, G"), ("0", "a number with K, M, G")])
def test_sizes_that_are_none(
    cli: Cli, model: Path, tmp_path: Path, command: tuple[str, ...], size: str, message: str
) -> None:
    arguments = [tmp_path / "out" if word == "OUT" else word for word in command]
    done = cli(*arguments, model, "--max-host-memory", size)
    assert done.code == 2
    assert "--max-host-memory" in done.err and message in done.err


@pytest.mark.parametrize("command", ["bench", "export"])
def test_a_size_that_is_too_small_says_what_is_enough(cli: Cli, model: Path, tmp_path: Path, command: str) -> None:
    more = ("-o", tmp_path / "out") if command == "export" else ()
    done = cli(command, model, *more, "--max-host-memory", "1M")
    assert done.code == 2
    assert "too few to load with" in done.err and "--max-host-memory 16Mi is the least." in done.err


def test_serve_hands_the_limit_to_vllm_s_workers(cli: Cli, gemma: Path) -> None:
    done = cli("serve", gemma, "--offline", "--dry-run", "--max-host-memory", "2Gi")
    assert done.code == 0, done.err
    option = done.out.index("--model-loader-extra-config '") + len("--model-loader-extra-config '")
    assert json.loads(done.out[option : done.out.index("'", option)]) == {"max_host_memory": 2 << 30}
