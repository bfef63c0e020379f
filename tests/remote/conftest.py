"""Servers on loopback, and a client whose patience is that of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support import small_models as small
from support.http_server import Fault, HttpServer
from support.hub_server import Hub

from ggufmap.remote.limits import RemoteLimits

LIMITS = RemoteLimits(connect_s=2, silence_s=1, request_s=2, backoff_s=0.01, longest_wait_s=0.05)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder to serve, with one small model."""
    small.write_llama(tmp_path / "www" / "m.gguf")
    return tmp_path / "www"


Serve = Callable[..., HttpServer]


@pytest.fixture
def serve(folder: Path) -> Iterator[Serve]:
    """`serve(fault, ...)` starts a server of `folder`."""
    with ExitStack() as stack:
        yield lambda fault=Fault.NONE, **options: stack.enter_context(HttpServer(folder, fault, **options))


@pytest.fixture
def on_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Hub]]:
    """`on_hub(folder, ...)` starts an imitation of the hub that the hub's library then asks."""
    from huggingface_hub import constants

    with ExitStack() as stack:

        def start(folder: Path, **options: Any) -> Hub:
            hub = stack.enter_context(Hub(folder, **options))
            monkeypatch.setattr(constants, "ENDPOINT", hub.api.root)
            template = hub.api.root + "/{repo_id}/resolve/{revision}/{filename}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
            monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
            return hub

        yield start
