"""What the tests of the model families share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from families.tracing import Tracer


@pytest.fixture(scope="session")
def tracer() -> Iterator[Tracer]:
    """Audits with vLLM, in one process for all."""
    found = Tracer()
    yield found
    found.close()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """pytest's, emptied afterwards: these tests write 30 MB each, and pytest keeps the folders of three runs."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads only wait for each other, and for whoever else uses the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
