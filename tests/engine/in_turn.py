"""What the workers share: engines in one process, one after the other."""

from __future__ import annotations

import gc

_collect = gc.collect


def collect_at_the_end() -> None:
    """From now on garbage is collected by `clean_up` alone.

    vLLM does it nine times as it starts and ends an engine, each time through everything that was ever imported: half
    of what a tiny engine takes.
    """
    gc.collect = lambda generation=2: 0


def clean_up() -> None:
    """Take down an engine that nothing refers to any more."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    _collect()
    cleanup_dist_env_and_memory()
    _collect()
