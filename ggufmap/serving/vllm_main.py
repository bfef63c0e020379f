"""Run one of vLLM's modules as `python -m` would: `python -m ggufmap.serving.vllm_main MODULE [ARGUMENTS...]`.

With two repairs of what vLLM 0.32.0 and 0.33.0 do:

- A server whose engine died ends with 0, as if somebody had told it to stop, and its supervisor does not start it again
  (entrypoints/launchers/launcher.py). Here it ends with 1.
- SIGTERM and Ctrl-C are lost while the engine starts, however long the load takes: the wait for it swallows the
  KeyboardInterrupt that they become (zmq_socket_ctx in utils/network_utils.py). Here it ends, with 128 + the signal.
"""

from __future__ import annotations

import importlib
import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_LAUNCHERS = ("vllm.entrypoints.launchers.launcher", "vllm.entrypoints.launcher")  # since 0.32, before


def main() -> None:
    """Run the module, then exit with its code, with 1 when the engine died, or with 128 + the signal that ended it."""
    del sys.argv[0]
    deaths = _noted_deaths()
    _let_interrupts_through()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt as e:
        number = signal.SIGTERM if "terminated" in str(e) else signal.SIGINT  # vLLM's word for SIGTERM
        print(f"ggufmap: stopped by {number.name} while starting", file=sys.stderr)
        sys.exit(128 + number)
    except SystemExit as e:
        if e.code:
            raise
    if deaths:
        sys.exit(1)


def _noted_deaths() -> list[str]:
    """A list that gets an entry when vLLM ends the server because its engine died; empty where it cannot be told."""
    deaths: list[str] = []
    launcher = next(filter(None, map(_module, _LAUNCHERS)), None)
    original = getattr(launcher, "terminate_if_errored", None)
    if launcher is None or original is None:
        return deaths

    def terminate_if_errored(server: Any, engine: Any) -> None:
        stopping = server.should_exit
        original(server, engine)
        if server.should_exit and not stopping:
            deaths.append("engine")

    launcher.terminate_if_errored = terminate_if_errored  # type: ignore[attr-defined]
    return deaths


def _let_interrupts_through() -> None:
    """The wait for the engine passes a KeyboardInterrupt on."""
    waiter = _module("vllm.v1.engine.utils")
    original = getattr(waiter, "zmq_socket_ctx", None)
    if waiter is None or original is None:
        return

    @contextmanager
    def zmq_socket_ctx(*args: Any, **kwargs: Any) -> Iterator[Any]:
        interrupt: KeyboardInterrupt | None = None
        with original(*args, **kwargs) as socket:
            try:
                yield socket
            except KeyboardInterrupt as e:
                interrupt = e
                raise
        if interrupt is not None:  # swallowed by the original
            raise interrupt

    waiter.zmq_socket_ctx = zmq_socket_ctx  # type: ignore[attr-defined]


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


if __name__ == "__main__":
    main()
