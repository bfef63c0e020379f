"""Is the server's port free? vLLM itself would share it with another server of the same user, and say nothing."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from ggufmap.errors import UsageError

_DEFAULT = "8000"
_ELSEWHERE = ("--headless", "--uds", "--config")
"""With these, no port is opened, or it is not on the command line."""


def check_port(extra: Sequence[str]) -> None:
    """Raise UsageError when something listens already where the server with the vLLM options `extra` will."""
    given = {"--host": "", "--port": _DEFAULT}
    for option, value in zip(extra, [*extra[1:], ""], strict=False):
        name, equals, rest = option.partition("=")
        if name in _ELSEWHERE:
            return
        if name in given:
            given[name] = rest if equals else value
    host, port = given["--host"] or "0.0.0.0", given["--port"]
    if not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--port {port}: a number up to 65535 is expected", hint="For example: -- --port 8001")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as e:
            if e.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} is taken: another server listens there",
                    hint=f"Take another one: -- --port {int(port) + 1}",
                ) from e
            # Whatever else is wrong with the address, vLLM says better.
