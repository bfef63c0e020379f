"""What the tests of the model families share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from families.tracing import Tracer


@pytest.fixture(scope="session")
def tracer() -> Iterator[Tracer]:
    """Audits with vLLM, in one process for all."""
    found = Tracer()
    yield found
    found.close()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads only wait for each other, and for whoever else uses the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
