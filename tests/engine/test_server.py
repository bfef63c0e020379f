"""`ggufmap serve` with the real model: started, asked over HTTP, stopped."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine import harness
from engine.server import GGUFMAP, READY_S, Server, can_bind, free_port
from support.converter import TinyFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

OPTIONS = ("--host", "127.0.0.1", "--max-model-len", "512", "--enforce-eager", "--max-num-seqs", "4")
QUESTIONS = {
    "The capital of France is": ("Paris", "France"),
    "One, two, three, four, five,": ("six",),
    "Monday, Tuesday, Wednesday,": ("Thursday",),
    "The opposite of hot is": ("cold",),
}


def dry_run(gguf: Path, *options: str, **changes: str) -> list[str]:
    """The printed command, as words; what it says of the environment comes first."""
    command = [*GGUFMAP, "serve", str(gguf), "--offline", "--dry-run", "--", *options]
    done = subprocess.run(command, env=harness.environment(**changes), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


@pytest.fixture(scope="module")
def server(gemma: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    command = [*GGUFMAP, "serve", str(gemma), "--", "--port", str(port), *OPTIONS]
    with Server(command, port, tmp_path_factory.mktemp("server") / "log") as running:
        running.wait_ready()
        yield running


def complete(server: Server, prompt: str) -> str:
    body = {"model": "gemma-3-270m-q4_k_m", "prompt": prompt, "max_tokens": 16, "temperature": 0}
    status, text = server.ask("/v1/completions", body)
    assert status == 200, text
    answer: str = json.loads(text)["choices"][0]["text"]
    return answer


def test_the_process_is_the_command_that_a_dry_run_prints(server: Server, gemma: Path) -> None:
    assert server.command_line() == dry_run(gemma, "--port", str(server.port), *OPTIONS)


def test_the_model_has_the_name_of_its_file(server: Server) -> None:
    status, text = server.ask("/v1/models")
    assert status == 200
    assert [model["id"] for model in json.loads(text)["data"]] == ["gemma-3-270m-q4_k_m"]


def test_every_weight_was_written(server: Server) -> None:
    assert "every element written once" in server.said()


@pytest.mark.parametrize("prompt", QUESTIONS)
def test_completion(server: Server, prompt: str) -> None:
    answer = complete(server, prompt)
    assert any(word in answer for word in QUESTIONS[prompt]), answer


def test_concurrent_requests(server: Server) -> None:
    prompts = list(QUESTIONS) * 4
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert any(word in answer for word in QUESTIONS[prompt]), (prompt, answer)


def test_the_text_starts_with_bos(server: Server) -> None:
    status, text = server.ask("/tokenize", {"model": "gemma-3-270m-q4_k_m", "prompt": "The capital of France is"})
    assert status == 200
    assert json.loads(text)["tokens"] == [2, 818, 5279, 529, 7001, 563]  # llama.cpp's


def test_chat_needs_a_template(server: Server) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    status, text = server.ask("/v1/chat/completions", {"model": "gemma-3-270m-q4_k_m", "messages": messages})
    assert status == 400
    assert "chat template" in json.loads(text)["error"]["message"]


def test_stops_when_told(server: Server) -> None:
    """Last, since the server is gone afterwards."""
    assert not can_bind(server.port)
    assert server.stop() == 0, server.said()[-4000:]
    assert server.left_behind() == []
    assert can_bind(server.port)


def test_the_user_names_the_model(gemma: Path) -> None:
    for options in (("--served-model-name", "my model"), ("--served-model-name=my model",)):
        words = dry_run(gemma, *options)
        assert "gemma-3-270m-q4_k_m" not in words
        assert words[-len(options) :] == list(options)


def test_the_plugin_is_added_to_the_users_list(gemma: Path) -> None:
    assert dry_run(gemma, VLLM_PLUGINS="other")[0] == "VLLM_PLUGINS=other,ggufmap"
    assert dry_run(gemma, VLLM_PLUGINS="")[0] == "VLLM_PLUGINS=ggufmap"
    assert not dry_run(gemma, VLLM_PLUGINS="ggufmap,other")[0].startswith("VLLM_PLUGINS")


@pytest.mark.parametrize("spoiled", ["truncated", "another"])
def test_the_file_changes_before_the_load(tiny: TinyFactory, tmp_path: Path, spoiled: str) -> None:
    gguf = tmp_path / "model.gguf"
    shutil.copyfile(tiny("llama")[1], gguf)
    port = free_port()
    command = dry_run(gguf, "--port", str(port), *OPTIONS)
    if spoiled == "truncated":
        os.truncate(gguf, gguf.stat().st_size - 1000)
    else:
        shutil.copyfile(tiny("llama_wide")[1], gguf)
    with Server(command, port, tmp_path / "log") as server:
        assert server.process.wait(READY_S) not in (0, None)
        assert "FileError" in server.said() and str(gguf) in server.said()
        assert server.left_behind() == []


def test_an_unknown_file_is_refused_at_once(tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"GGUF" + bytes(100))
    done = subprocess.run([*GGUFMAP, "serve", str(junk)], env=harness.environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "error:" in done.stderr and str(junk) in done.stderr and "Traceback" not in done.stderr
