"""The commands on remote references: what they do, what they say, and that no secret is in it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from remote.conftest import Serve
from support import small_models as small
from support.converter import TinyFactory
from support.hub_server import SIGNATURE, Hub
from support.report_schema import check_report
from support.speed import fastest, measured, slack
from support.synthetic import generator

from ggufmap.errors import GgufmapError, UsageError
from ggufmap.modeldir.manifest import MANIFEST, read_manifest

TOKEN = "hf_s3cr3tT0ken"


@dataclass(frozen=True)
class Said:
    """What a command said."""

    stdout: str
    stderr: str


Run = Callable[..., Said]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`run("audit", reference, ..., code=0)`, in this process; no secret is in anything that it says."""
    from ggufmap.cli.main import main

    monkeypatch.setenv("COLUMNS", "160")

    def command(*arguments: object, code: int = 0, debug: bool = False) -> Said:
        monkeypatch.setattr(sys, "argv", ["ggufmap", *map(str, arguments)])
        monkeypatch.setenv("GGUFMAP_DEBUG", "1" if debug else "")
        capfd.readouterr()
        found: object = 0
        trace = ""
        try:
            main()
        except SystemExit as e:
            found = e.code or 0
        except GgufmapError:
            found, trace = "raised", traceback.format_exc()
        sys.stdout.flush()
        said = capfd.readouterr()
        assert found == ("raised" if debug else code), said.err
        assert TOKEN not in said.out + said.err + trace and SIGNATURE not in said.out + said.err + trace
        return Said(said.out, said.err + trace)

    return command


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A good model and one with a fault."""
    small.write_llama(tmp_path / "repo" / "m-Q4_K_M.gguf")
    tensors = small.without(small.llama_tensors(), "output_norm.weight")
    small.write_llama(tmp_path / "repo" / "m-Q8_0.gguf", tensors=tensors)
    return tmp_path / "repo"


@pytest.fixture
def hub(repo: Path, on_hub: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return on_hub(repo, token=TOKEN)


def test_audit_and_map_of_a_model_of_the_hub(run: Run, hub: Hub, repo: Path) -> None:
    report = json.loads(run("audit", "hf://org/repo:q4_k_m", "--offline", "--json").stdout)
    check_report(report)
    assert report["ok"] is True and report["model"]["path"] == "hf://org/repo/m-Q4_K_M.gguf"
    assert report["model"]["bytes"] == (repo / "m-Q4_K_M.gguf").stat().st_size
    shown = run("audit", "hf://org/repo:q4_k_m", "--offline").stdout
    assert "serve it: ggufmap serve hf://org/repo/m-Q4_K_M.gguf" in shown
    listed = run("map", "hf://org/repo:q8_0", "--offline", code=1).stdout
    assert "blk.0.attn_q.weight  F32 64x64" in listed
    assert TOKEN not in str([(r.path, r.headers) for r in hub.cdn.requests])


def test_nothing_says_the_token(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors, verbose output and tracebacks: `run` looks through all that was said."""
    run("audit", "hf://org/repo:q4_k_m", "--offline", "-v")
    for reference, words in (("hf://org/repo", "holds 2 models"), ("hf://org/none:q4", "there is no such model")):
        assert words in run("audit", reference, "--offline", code=2).stderr
    hub.cdn.__exit__(None, None, None)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    found = run("audit", "hf://org/repo:q8_0", "--offline", debug=True).stderr
    assert "Traceback" in found and "connection refused (tried 4 times)" in found


def test_secrets_of_a_url_are_never_said(run: Run, serve: Serve) -> None:
    server = serve()
    secret = f"{server.url('m.gguf')}?{SIGNATURE}".replace("://", f"://user:{TOKEN}@")
    done = run("audit", secret, "--offline", "-v")
    assert server.url("m.gguf") in done.stderr
    assert "serve it: ggufmap serve FILE, once it is downloaded" in done.stdout
    report = json.loads(run("audit", secret, "--offline", "--json").stdout)
    check_report(report)
    assert report["model"]["path"] == server.url("m.gguf")
    none = secret.replace("m.gguf", "none.gguf")
    assert "is not there (HTTP 404)" in run("audit", none, "--offline", code=2).stderr
    run("audit", none, "--offline", debug=True)
    assert "Download the file, all splits of it" in run("serve", secret, code=2).stderr
    assert "no such option" in run("audit", secret, "--no-such-option", code=2).stderr.lower()
    run("audit", "--offline", "--draft", secret, secret, code=2)


def test_a_reference_without_its_scheme_is_recognised(run: Run) -> None:
    said = run("audit", "org/repo:Q4_K_M", code=2).stderr
    assert "org/repo:Q4_K_M: no such file or folder" in said and "write hf://org/repo:Q4_K_M" in said


def test_the_config_of_a_model_of_the_hub(
    run: Run, on_hub: Callable[..., Hub], tiny: TinyFactory, tmp_path: Path
) -> None:
    """The folder is that of the local file, but for where the weights are; vLLM's loader says what to do."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "m.gguf").symlink_to(tiny("llama")[1])
    on_hub(tmp_path / "one")
    run("config", "hf://org/repo", "-o", tmp_path / "remote")
    run("config", tmp_path / "one" / "m.gguf", "-o", tmp_path / "local")
    for file in sorted((tmp_path / "local").iterdir()):
        if file.name != MANIFEST:
            assert (tmp_path / "remote" / file.name).read_bytes() == file.read_bytes()
    assert json.loads((tmp_path / "remote" / MANIFEST).read_text())["gguf"] == "hf://org/repo/m.gguf"
    with pytest.raises(UsageError, match="whose weights are not on this machine"):
        read_manifest(tmp_path / "remote")


def test_serve_downloads_what_it_would_serve_and_nothing_else(
    run: Run, on_hub: Callable[..., Hub], tiny: TinyFactory, tmp_path: Path
) -> None:
    root, cache = tmp_path / "tiny-repo", tmp_path / "hub-cache"
    root.mkdir()
    (root / "m-BF16.gguf").symlink_to(tiny("llama")[1])
    (root / "m-F32.gguf").symlink_to(tiny("llama")[1])
    tensors = small.without(small.llama_tensors(), "output_norm.weight")
    small.write_llama(root / "m-Q8_0.gguf", tensors=tensors)
    on_hub(root)
    said = run("serve", "hf://org/repo:q8_0", "--offline", code=1)
    assert "not served: the mapping of hf://org/repo/m-Q8_0.gguf has 1 problem" in said.stderr
    assert not list(cache.rglob("*.gguf"))

    said = run("serve", "hf://org/repo:bf16", "--offline", "--dry-run")
    assert "would be downloaded first: 1 file of hf://org/repo/m-BF16.gguf" in said.stderr and said.stdout == ""
    assert not list(cache.rglob("*.gguf"))

    run("bench", "hf://org/repo:bf16", "--bytes", "1M")  # downloads
    (file,) = cache.rglob("*.gguf")
    assert file.name == "m-BF16.gguf"
    said = run("serve", "hf://org/repo:bf16", "--offline", "--dry-run")
    (folder,) = [Path(word) for word in said.stdout.split() if (Path(word) / MANIFEST).is_file()]
    assert json.loads((folder / MANIFEST).read_text())["gguf"] == str(file.parent.resolve() / file.name)


# The large one.


@pytest.fixture(scope="module")
def glm5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM-5 in ten splits, 402 GiB apparent, in the folder of a quantisation of a repository."""
    root = tmp_path_factory.mktemp("glm5")
    synthesize = generator()
    synthesize.write(synthesize.MODELS["glm-5"](), root / "UD-Q4_K_XL", 10)
    return root


def test_glm_5_is_audited_over_the_network_with_a_few_megabytes(
    glm5: Path, tmp_path_factory: pytest.TempPathFactory, record_property: Callable[..., None]
) -> None:
    """A process from its start to its end; each answer takes 20 ms, as in a network."""
    audit = [sys.executable, "-m", "ggufmap.cli.main", "audit", "hf://org/repo:q4_k_xl", "--offline", "--json"]
    delay = 0.02
    figures: dict[str, float] = {}

    def audited(run: str, cache: Path) -> tuple[float, Path]:
        """Seconds, and the cache that was filled."""
        sent, requests = hub.sent, hub.answers
        env = {**os.environ, "GGUFMAP_CACHE": str(cache), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.api.root}
        found = measured(audit, env)
        report = json.loads(found.stdout)
        assert (report["ok"], report["model"]["splits"]) == (True, 10)
        assert (report["summary"]["tensors"], report["model"]["bytes"] > 402e9) == (1809, True)
        asked = hub.answers - requests
        seconds = found.seconds(waiting=asked * delay)  # as if it had asked one after the other
        took = {"wall": found.wall, "cpu": found.cpu, "seconds": seconds, "bytes": hub.sent - sent, "requests": asked}
        figures.update({f"{run} {name}": value for name, value in took.items()})
        return seconds, cache

    limit = 3 * slack()
    with Hub(glm5, delay=delay) as hub:
        seconds, cache = fastest(lambda: audited("first", tmp_path_factory.mktemp("cache")), limit)
        audited("again", cache)
    for name, value in figures.items():
        record_property(name, value)
    print(f"GLM-5 over the network: {figures}")
    assert figures["first bytes"] <= 32e6 and figures["again bytes"] == 10 * 64
    assert seconds <= limit
