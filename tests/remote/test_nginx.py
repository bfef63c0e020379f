"""A web server that is not ours: nginx, as Debian has it (skipped where it is not installed)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote.conftest import LIMITS
from support import small_models as small

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError
from ggufmap.remote import locate

_CONFIG = """
daemon off; master_process off; worker_processes 1; pid {here}/pid; error_log {here}/error.log;
events {{}}
http {{
  access_log {here}/access.log; client_body_temp_path {here}/t; proxy_temp_path {here}/t; fastcgi_temp_path {here}/t;
  uwsgi_temp_path {here}/t; scgi_temp_path {here}/t; etag on;
  server {{
    listen 127.0.0.1:{port}; root {root};
    location /plain/ {{ alias {root}/; max_ranges 0; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
  }}
}}
"""


@pytest.fixture
def nginx(folder: Path, tmp_path: Path) -> Iterator[str]:
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(_CONFIG.format(here=tmp_path, port=port, root=folder))
    # Its workers would be another user's where it is started by root; one process is enough here.
    with subprocess.Popen(
        [program, "-c", tmp_path / "nginx.conf", "-p", tmp_path], stderr=subprocess.DEVNULL
    ) as server:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.mark.parametrize("path", ["", "moved/", "plain/"], ids=["ranges", "redirect", "no ranges"])
def test_a_set_is_read_from_nginx(nginx: str, folder: Path, path: str) -> None:
    paths = small.write_splits(folder, [small.llama_tensors()[:9], small.llama_tensors()[9:]], stem="set")
    with (
        open_checkpoint(locate(f"{nginx}/{path}{paths[1].name}", LIMITS)) as remote,
        open_checkpoint(paths[0]) as local,
    ):
        assert remote.header_hash() == local.header_hash() and remote.nbytes == local.nbytes


def test_a_file_that_changes_is_noticed_by_nginx(nginx: str, folder: Path) -> None:
    with open_checkpoint(locate(f"{nginx}/m.gguf", LIMITS)) as checkpoint:
        checkpoint.splits[0].source.require_unchanged()
        small.write_llama(folder / "m.gguf", tensors=small.llama_tensors(tied=True))
        with pytest.raises(FileError, match="was changed on the server"):
            checkpoint.splits[0].source.require_unchanged()
