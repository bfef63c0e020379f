"""Models of the hub, over an imitation of it that the hub's own library talks to: a loopback API and a second host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from remote.conftest import LIMITS
from support import gguf_bytes as gb
from support import small_models as small
from support.hub_server import COMMIT, SIGNATURE, Hub

from ggufmap.checkpoint import open_checkpoint
from ggufmap.checkpoint.source import Place
from ggufmap.errors import FileError, GgufmapError, MissingDependencyError, UsageError
from ggufmap.modeldir.build import _whole
from ggufmap.remote import fetch, locate, to_download
from ggufmap.remote.hub import choose
from ggufmap.remote.reference import HubReference
from ggufmap.serving.preflight import preflight

TOKEN = "hf_s3cr3tT0ken"
OnHub = Callable[..., Hub]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository as they are: quantisations beside each other and in folders, splits, projectors, other files."""
    root = tmp_path / "repo"
    small.write_llama(root / "m-Q4_K_M.gguf")
    small.write_llama(root / "m-BF16.gguf", tensors=small.llama_tensors(tied=True))
    small.write_splits(root / "UD-Q8_0", [small.llama_tensors()[:9], small.llama_tensors()[9:]], stem="m-UD-Q8_0")
    (root / "mmproj-F16.gguf").write_bytes(b"GGUF, but of a kind that does not fit")
    (root / "imatrix.gguf").write_bytes(b"x")
    (root / "config.json").write_text("{}")
    return root


def located(text: str) -> Place:
    return locate(text, LIMITS)


def test_a_tag_a_path_and_a_revision_lead_to_a_file(on_hub: OnHub, repo: Path) -> None:
    hub = on_hub(repo)
    for reference, path in (
        ("hf://org/repo:q4-k-m", "m-Q4_K_M.gguf"),
        ("hf://org/repo@main:bf16", "m-BF16.gguf"),
        (f"hf://org/repo@{COMMIT}/m-BF16.gguf", "m-BF16.gguf"),
        ("hf://org/repo:q8_0", "UD-Q8_0/m-UD-Q8_0-00001-of-00002.gguf"),
        ("hf://org/repo/UD-Q8_0/m-UD-Q8_0-00002-of-00002.gguf", "UD-Q8_0/m-UD-Q8_0-00001-of-00002.gguf"),
    ):
        with open_checkpoint(located(reference)) as remote, open_checkpoint(repo / path) as local:
            assert remote.header_hash() == local.header_hash() and len(remote.splits) == len(local.splits)
            root = reference.partition(":q")[0].partition(":b")[0].partition("/m-")[0].partition("/UD")[0]
            assert str(remote.path) == f"{root}/{path}"
    assert all(f"/resolve/{COMMIT}/" in r.path for r in hub.api.requests if "/resolve/" in r.path)


def test_an_ambiguous_reference_lists_its_candidates(on_hub: OnHub, repo: Path) -> None:
    on_hub(repo)
    with pytest.raises(UsageError, match="hf://org/repo: holds 3 models") as e:
        located("hf://org/repo")
    assert e.value.hint is not None and [line.split() for line in e.value.hint.splitlines()[1:]] == [
        ["UD-Q8_0", "UD-Q8_0/m-UD-Q8_0-00001-of-00002.gguf"],
        ["BF16", "m-BF16.gguf"],
        ["Q4_K_M", "m-Q4_K_M.gguf"],
    ]
    with pytest.raises(UsageError, match="no file is f16") as e:  # neither bf16 nor the projector
        located("hf://org/repo:f16")
    assert "m-BF16.gguf" in (e.value.hint or "")
    with pytest.raises(UsageError, match=r"has no file m-Q4_K_S\.gguf"):
        located("hf://org/repo/m-Q4_K_S.gguf")
    small.write_llama(repo / "old" / "m-Q4_K_M.gguf")
    with pytest.raises(UsageError, match=":Q4_K_M means 2 models"):
        located("hf://org/repo:Q4_K_M")


def test_the_only_model_needs_no_tag(on_hub: OnHub, folder: Path) -> None:
    on_hub(folder)
    assert str(located("hf://org/repo")) == "hf://org/repo/m.gguf"


def test_a_missing_split_is_known_before_anything_is_fetched(on_hub: OnHub, repo: Path) -> None:
    hub = on_hub(repo)
    (repo / "UD-Q8_0" / "m-UD-Q8_0-00002-of-00002.gguf").unlink()
    with pytest.raises(FileError, match=r"1 of 2 splits are missing: m-UD-Q8_0-00002-of-00002\.gguf"):
        open_checkpoint(located("hf://org/repo:ud-q8_0"))
    assert len(hub.cdn.requests) == 1


def test_the_projector_of_a_repository_is_looked_at(on_hub: OnHub, repo: Path) -> None:
    on_hub(repo)
    with open_checkpoint(located("hf://org/repo:q4_k_m"), look_beside=True) as checkpoint:
        assert "the projector beside the model is not taken: hf://org/repo/mmproj-F16.gguf" in checkpoint.projector_note
    (repo / "mmproj-BF16.gguf").write_bytes(b"x")
    with open_checkpoint(located("hf://org/repo:q4_k_m"), look_beside=True) as checkpoint:
        assert "2 projectors lie beside the model" in checkpoint.projector_note


def test_names_that_would_leave_the_repository_do_not_exist() -> None:
    files = ("../../m-Q4_K_M.gguf", "/etc/m-Q4_K_M.gguf")
    with pytest.raises(UsageError):
        choose(HubReference("org/repo", path="ok.gguf"), files)


def test_a_hostile_listing_leads_nowhere(on_hub: OnHub, folder: Path) -> None:
    hub = on_hub(folder)
    hub.extra = ["../../evil-Q4_K_M.gguf", "/tmp/evil-Q4_K_M.gguf", "a\\evil-Q4_K_M.gguf"]
    assert str(located("hf://org/repo")) == "hf://org/repo/m.gguf"
    with pytest.raises(UsageError, match="no file is Q4_K_M"):
        located("hf://org/repo:Q4_K_M")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("hf://org/other:Q4_K_M", "there is no such model"),
        ("hf://org/repo@nope:Q4_K_M", "there is no such revision"),
        ("hf://org/re--po", "not the name of a model"),
    ],
)
def test_what_the_hub_does_not_have(on_hub: OnHub, repo: Path, reference: str, message: str) -> None:
    on_hub(repo)
    with pytest.raises(GgufmapError, match=message) as e:
        located(reference)
    assert e.value.hint


def test_a_hub_that_is_not_there(on_hub: OnHub, repo: Path) -> None:
    hub = on_hub(repo)
    hub.api.__exit__(None, None, None)
    with pytest.raises(FileError, match="the hub cannot be asked") as e:
        located("hf://org/repo")
    assert "HF_ENDPOINT" in (e.value.hint or "")


# Tokens.


def test_a_token_goes_to_the_hub_and_never_to_another_host(
    on_hub: OnHub, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub = on_hub(repo, token=TOKEN)
    with open_checkpoint(located("hf://org/repo:q8_0")) as checkpoint:
        assert len(checkpoint.splits) == 2
    assert {r.headers.get("authorization") for r in hub.api.requests} == {f"Bearer {TOKEN}"}
    assert len(hub.cdn.requests) == 2 and all(SIGNATURE in r.path for r in hub.cdn.requests)
    assert TOKEN not in str([(r.path, r.headers) for r in hub.cdn.requests])


def test_a_private_model_without_a_token(on_hub: OnHub, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    on_hub(repo, token=TOKEN)
    with pytest.raises(FileError, match="there is no such model") as e:
        located("hf://org/repo:q8_0")
    assert "hf auth login" in (e.value.hint or "")


def test_the_cache_has_neither_token_nor_signature(
    on_hub: OnHub, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub = on_hub(repo, token=TOKEN)
    open_checkpoint(located("hf://org/repo:q8_0")).close()
    sent = hub.sent
    open_checkpoint(located("hf://org/repo:q8_0")).close()
    assert hub.sent - sent == 2 * 64  # from the cache, by the hub's ETag
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(files) == 4
    for path in files:
        held = str(path).encode() + path.read_bytes()
        assert TOKEN.encode() not in held and SIGNATURE.encode() not in held


# Downloads.


def test_a_download_is_of_the_chosen_files_alone(on_hub: OnHub, repo: Path) -> None:
    hub = on_hub(repo)
    place = located("hf://org/repo:q8_0")
    wanted = [f"UD-Q8_0/m-UD-Q8_0-0000{no}-of-00002.gguf" for no in (1, 2)]
    assert to_download(place) == [*wanted, "mmproj-F16.gguf"]
    files = fetch(place)
    assert files.mmproj is not None and files.mmproj.name == "mmproj-F16.gguf"
    assert to_download(place) == []
    root = files.mmproj.parent
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*.*") if path.is_file()) == [
        *wanted,
        "mmproj-F16.gguf",
    ]
    with open_checkpoint(files.model) as local, open_checkpoint(repo / wanted[0]) as original:
        assert local.header_hash() == original.header_hash()
        # The hub's cache is made of links to files named by hashes; the model directory has to keep the names.
        assert files.model.is_symlink() and _whole(local.path).endswith(wanted[0])
        with open_checkpoint(Path(_whole(local.path))) as loaded:
            assert len(loaded.splits) == 2
    requests = len(hub.cdn.requests)
    assert fetch(place) == files and len(hub.cdn.requests) == requests


def test_without_a_network_the_hub_s_cache_is_used(on_hub: OnHub, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    on_hub(repo)
    files = fetch(located("hf://org/repo:q8_0"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert located("hf://org/repo:q8-0") == files.model
    assert fetch("hf://org/repo:q8_0").model == files.model
    with pytest.raises(UsageError, match="no file is q4_k_m"):
        located("hf://org/repo:q4_k_m")
    with pytest.raises(FileError, match="the hub is switched off"):
        located("hf://org/other:q4_k_m")


def test_a_download_that_fails_is_said(on_hub: OnHub, repo: Path) -> None:
    hub = on_hub(repo)
    place = located("hf://org/repo:q4_k_m")
    hub.cdn.__exit__(None, None, None)
    with pytest.raises(FileError, match="the download failed") as e:
        fetch(place)
    assert SIGNATURE not in str(e.value) and "what is there is kept" in (e.value.hint or "")


def test_a_repository_that_moves_on_before_the_download_is_not_downloaded(on_hub: OnHub, repo: Path) -> None:
    hub = on_hub(repo)
    place = located("hf://org/repo:q4_k_m")
    hub.commit = "f" * 40
    with pytest.raises(FileError, match="was changed on the hub after it was looked at"):
        fetch(place)


@pytest.mark.parametrize("reference", ["https://127.0.0.1:1/m.gguf?sig=secret", "s3://bucket/m.gguf"])
def test_only_the_hub_s_files_are_downloaded(reference: str) -> None:
    with pytest.raises(UsageError, match="the weights are needed, and only headers are read from there") as e:
        fetch(reference)
    assert "secret" not in str(e.value)


def test_what_a_file_says_of_its_origin_is_not_asked_for(on_hub: OnHub, tmp_path: Path) -> None:
    """`general.base_model.*` names other repositories: none is looked at, and nothing of them is run."""
    keys = {
        "general.base_model.count": (gb.UINT32, 1),
        "general.base_model.0.repo_url": (gb.STRING, "https://huggingface.co/evil/code"),
        "general.base_model.0.name": (gb.STRING, "evil/code"),
        "general.repo_url": (gb.STRING, "evil/code"),
    }
    small.write_llama(tmp_path / "repo" / "m.gguf", small.llama_metadata() | keys)
    hub = on_hub(tmp_path / "repo")
    found = preflight("hf://org/repo", offline=True)
    with found.checkpoint:
        assert found.plan.ok
    asked = [request.path for request in (*hub.api.requests, *hub.cdn.requests)]
    assert len(asked) == 3 and "evil" not in str(asked)
    assert "trust_remote_code" not in str(found.config.values) and "auto_map" not in found.config.values


@pytest.mark.parametrize(
    ("package", "reference"),
    [("huggingface_hub", "hf://org/repo"), ("requests", "https://host/m.gguf"), ("boto3", "s3://bucket/m.gguf")],
)
def test_a_missing_package_is_named(package: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(MissingDependencyError, match=f"need the package {package}, which is not installed") as e:
        locate(reference)
    assert (e.value.exit_code, e.value.hint) == (3, "pip install 'ggufmap[remote]'")
