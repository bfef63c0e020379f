"""Run one of vLLM's modules as `python -m` would: `python -m ggufmap.serving.vllm_main MODULE [ARGUMENTS...]`.

With three repairs of what vLLM 0.32.0 and 0.33.0 do (they are in `target/compat.py`):

- A server whose engine died ends with 0, as if somebody had stopped it, and its supervisor does not start it again.
  Here it ends with 1.
- SIGTERM and Ctrl-C are lost while the engine starts, however long the load takes. Here it ends, with 128 + the signal.
- A server that is told to stop ends its engine first, and may then wait for ever for requests that nobody answers any
  more. Here it waits some seconds.
"""

from __future__ import annotations

import runpy
import signal
import sys

from ggufmap.target import compat

_GRACE_S = 5


def main() -> None:
    """Run the module, then exit with its code, with 1 when the engine died, or with 128 + the signal that ended it."""
    del sys.argv[0]
    deaths = compat.note_dead_engines()
    compat.let_interrupts_through()
    compat.bound_graceful_shutdown(_GRACE_S)
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


if __name__ == "__main__":
    main()
