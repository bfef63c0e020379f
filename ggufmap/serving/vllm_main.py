"""Run one of vLLM's modules as `python -m` would: `python -m ggufmap.serving.vllm_main MODULE [ARGUMENTS...]`.

With four repairs of what vLLM 0.32.0 and 0.33.0 do (they are in `target/compat.py`):

- A server whose engine died ends with 0, as if somebody had stopped it, and its supervisor does not start it again.
  Here it ends with 1.
- SIGTERM and Ctrl-C are lost while the engine starts, however long the load takes. Here it ends, with 128 + the signal.
- A server that is told to stop ends its engine first, and may then wait for ever for requests that nobody answers any
  more. Here it waits some seconds.
- A thread that renders an endless chat template, whose request vLLM has given up, keeps the process from ending. Here
  it is left behind.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from typing import NoReturn

from ggufmap.target import compat

_GRACE_S = 5
_END_S = 10


def main() -> NoReturn:
    """Run the module, then exit with its code, with 1 when the engine died, or with 128 + the signal that ended it."""
    del sys.argv[0]
    deaths = compat.note_dead_engines()
    compat.let_interrupts_through()
    compat.bound_graceful_shutdown(_GRACE_S)
    code: object = None
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt as e:
        number = signal.SIGTERM if "terminated" in str(e) else signal.SIGINT  # vLLM's word for SIGTERM
        print(f"ggufmap: stopped by {number.name} while starting", file=sys.stderr)
        code = 128 + number
    except SystemExit as e:
        code = e.code
    _exit(code or (1 if deaths else 0))


def _exit(code: object) -> NoReturn:
    """Exit, at the latest in some seconds: the interpreter waits for threads, and one may never end."""
    number = code if isinstance(code, int) else 1  # anything else is printed, as by Python

    def leave() -> None:
        print(f"ggufmap: a thread has not ended within {_END_S} s: left behind", file=sys.stderr, flush=True)
        os._exit(number)

    watch = threading.Timer(_END_S, leave)
    watch.daemon = True
    watch.start()
    sys.exit(code)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
