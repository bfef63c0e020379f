"""A real `ggufmap serve`, as a person starts it: a process with a port and a log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from engine import harness

GGUFMAP = (sys.executable, "-m", "ggufmap.cli.main")
READY_S = 900
STOP_S = 120
GONE_S = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: past connections do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Server:
    """A server process; `stop` (or leaving the `with`) ends it and everything that it started."""

    def __init__(self, command: Sequence[str], port: int, log: Path, **changes: str) -> None:
        self.port = port
        self.log = log
        with log.open("wb") as out:
            environment = harness.environment(VLLM_LOGGING_LEVEL="INFO", **changes)
            # A session of its own, so that nothing but the signals sent here reaches it.
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        self.family: dict[int, psutil.Process] = {}

    def wait_ready(self) -> None:
        """Until /health answers. AssertionError shows the end of the log."""
        until = time.monotonic() + READY_S
        while self.process.poll() is None and time.monotonic() < until:
            try:
                if self.ask("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise AssertionError(f"not ready (exit {self.process.poll()}):\n{self.said()[-6000:]}")

    def ask(self, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of a GET, or of a POST when there is a body."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def command_line(self) -> list[str]:
        """What the process is now."""
        return psutil.Process(self.process.pid).cmdline()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def running(self) -> list[str]:
        """Processes of the server's that are still there: all it was ever seen to have started, and its session."""
        found = list(self.family.values())
        found += [p for p in psutil.process_iter() if _session(p.pid) == self.process.pid]
        return sorted({str(p) for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE})

    def left_behind(self, seconds: float = GONE_S) -> list[str]:
        """What is still there when the others have had so long to end: resource trackers outlive what they track."""
        until = time.monotonic() + seconds
        while self.running() and time.monotonic() < until:
            time.sleep(0.2)
        return self.running()

    def stop(self) -> int:
        """SIGTERM; the exit code. TimeoutExpired when it does not go."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self.family[child.pid] = child
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:  # whatever the outcome, nothing stays behind
            for process in psutil.process_iter():
                if _session(process.pid) == self.process.pid:
                    os.kill(process.pid, signal.SIGKILL)
            self.process.wait(STOP_S)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
