"""The command line, run as `ggufmap` runs it: through `main`, exit code and all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import small_models as small

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Result:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, all of it, as JSON."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """`cli("audit", path, ...)`, in this process, with a cache of its own."""
    from ggufmap.cli.main import main

    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["ggufmap", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as e:
            main()
            raise SystemExit(0)  # it may also simply return
        sys.stdout.flush()
        said = capfd.readouterr()
        code = e.value.code
        return Result(code if isinstance(code, int) else int(code is not None), said.out, said.err)

    return run


@pytest.fixture(scope="session")
def without_vllm(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    """The command in a Python that has everything but vLLM: links to all other installed packages."""
    import vllm

    shadow = tmp_path_factory.mktemp("no-vllm")
    for entry in Path(vllm.__file__).parents[1].iterdir():
        if not entry.name.lower().startswith("vllm") and entry.suffix != ".pth":
            (shadow / entry.name).symlink_to(entry)
    code = "import sys; from ggufmap.cli.main import main; main()"

    def run(*arguments: object, env: Mapping[str, str] | None = None) -> Result:
        done = subprocess.run(
            [sys.executable, "-S", "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{shadow}", "COLUMNS": "160", **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small file without a fault."""
    return small.write_llama(tmp_path / "model" / "small.gguf")
