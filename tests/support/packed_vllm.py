"""A vLLM that can hold packed weights on the CPU, in a process of its own (`packed_server.py`), started when needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ggufmap.target import client
from support import packed_ops
from support.vllm_process import VllmProcess

_SERVER = Path(__file__).with_name("packed_server.py")


class PackedVllm(VllmProcess):
    """`ask("trace", request)`, `ask("layers", request)`; with `answering()`, ggufmap's own traces go there too."""

    def __init__(self) -> None:
        super().__init__(_SERVER, {**client._QUIET, **os.environ, **packed_ops.environment()})

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While active, traces of this process are answered by a vLLM with packed layers."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_ask", lambda request, environment: self.ask("trace", request))
            yield
