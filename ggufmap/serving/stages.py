"""The stages of a command and what each takes, in the log `ggufmap`, which the command line shows with --verbose."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOG = logging.getLogger("ggufmap")


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Log how long the body took, also when it fails."""
    started = time.monotonic()
    try:
        yield
    finally:
        _LOG.debug("%s: %.2f s", what, time.monotonic() - started)


def announce(message: str) -> None:
    """Tell a person what takes a while from here on."""
    _LOG.info(message)
