"""An imitation of the Hugging Face hub on loopback: its API, and files that lie on a second host, as large files do.

What the hub's own library asks is answered as the hub does: `/api/models/ID/revision/REV`, `/api/models/ID/tree/REV`,
`/ID/resolve/REV/PATH` with a redirect to a signed URL of the second host and the ETag of the large file in a header.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from support.http_server import HttpServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIGNATURE = "X-Amz-Signature=5ec8e75164ed"


class Hub:
    """A hub with one repository, whose files are those below `folder`. `token` makes it a private one."""

    def __init__(self, folder: Path, repo: str = "org/repo", token: str = "", delay: float = 0.0) -> None:
        self.folder, self.repo = folder, repo
        self.api = HttpServer(folder, delay=delay, routes=self._answer)
        self.cdn = HttpServer(folder, delay=delay)
        self.authorization = f"Bearer {token}" if token else ""
        self.commit = COMMIT
        self.extra: list[str] = []
        """Names that the listing has, too."""

    def __enter__(self) -> Hub:
        self.api.__enter__()
        self.cdn.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.api.__exit__(kind, error, at)
        self.cdn.__exit__(kind, error, at)

    @property
    def sent(self) -> int:
        """Bytes of file bodies."""
        return self.cdn.sent

    @property
    def answers(self) -> int:
        """Requests of both hosts."""
        return len(self.api.requests) + len(self.cdn.requests)

    def files(self) -> list[str]:
        """All paths in the repository."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in paths)

    def _answer(self, handler: Any, path: str) -> bool:
        api, resolve = f"/api/models/{self.repo}", f"/{self.repo}/resolve/"
        known = path.startswith((api, resolve))
        if self.authorization and handler.headers.get("Authorization") != self.authorization:
            handler.plain(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif not known:
            handler.plain(404, {"X-Error-Code": "RepoNotFound"})
        elif path in (api, f"{api}/revision/main", f"{api}/revision/{self.commit}"):
            self._json(handler, {"id": self.repo, "sha": self.commit, "siblings": self._siblings()})
        elif path == f"{api}/tree/{self.commit}":
            self._json(handler, [self._entry(name) for name in self.files()])
        elif (
            path.startswith(f"{resolve}{self.commit}/")
            and path.removeprefix(f"{resolve}{self.commit}/") in self.files()
        ):
            self._redirect(handler, unquote(urlsplit(handler.path).path).removeprefix(f"{resolve}{self.commit}/"))
        else:
            handler.plain(404, {"X-Error-Code": "RevisionNotFound" if "/revision/" in path else "EntryNotFound"})
        return True

    def _siblings(self) -> list[dict[str, str]]:
        return [{"rfilename": name} for name in (*self.files(), *self.extra)]

    def _entry(self, name: str) -> dict[str, Any]:
        size = (self.folder / name).stat().st_size
        lfs = {"oid": _digest(self.folder / name), "size": size, "pointerSize": 135}
        return {"type": "file", "path": name, "size": size, "oid": _digest(self.folder / name)[:40], "lfs": lfs}

    def _json(self, handler: Any, value: Any) -> None:
        handler.plain(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _redirect(self, handler: Any, name: str) -> None:
        path = self.folder / name
        handler.plain(
            302,
            {
                "Location": f"{self.cdn.root}/{quote(name)}?{SIGNATURE}",
                "X-Linked-ETag": f'"{_digest(path)}"',
                "X-Linked-Size": str(path.stat().st_size),
                "X-Repo-Commit": self.commit,
                "ETag": f'"{_digest(path)}"',
            },
        )


def _digest(path: Path) -> str:
    """Stands for the SHA-256 of the content, which would take long for a file of zeros."""
    stat = path.stat()
    if stat.st_size < 1 << 20:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
