"""Patch files are read strictly, and their changes are made at one place or not at all."""

from __future__ import annotations

import pytest
from patching.sites import AFTER, BEFORE, demo_patch, diff, patch_text, sha

from ggufmap.errors import PatchError
from ggufmap.patching.patchfile import FileDiff, parse


def test_the_header_and_the_changes() -> None:
    patch = demo_patch(more="Not-needed-from: 2.0\n")
    assert (patch.packages, patch.versions, patch.not_needed_from) == (("demo", "demo-cpu"), ("1.0", "1.1"), "2.0")
    assert patch.fixes == "that two is not 2"
    assert (patch.link, patch.remove_when) == ("https://example.org/1", "demo 2.0 is there")
    for file in patch.files:
        assert file.digests == dict.fromkeys(patch.versions, (sha(BEFORE[file.path]), sha(AFTER[file.path])))
        assert file.patched(BEFORE[file.path].encode()) == AFTER[file.path].encode()
        assert file.unpatched(AFTER[file.path].encode()) == BEFORE[file.path].encode()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Package: ", "Packages: ", "not a header line: 'Packages: demo demo-cpu'"),
        ("Link: https://example.org/1\n", "", "the header lacks Link"),
        ("Link: ", "Fixes: it\nLink: ", "Fixes stands twice"),
        (sha(BEFORE["demo/a.py"]), "abc", "Sha256 wants PATH BEFORE AFTER VERSION"),
        (sha(BEFORE["demo/a.py"]), sha(AFTER["demo/a.py"]), "Sha256 wants PATH BEFORE AFTER VERSION"),
        ("Versions: 1.0 1.1", "Versions: 1.0 1.1 1.2", r"demo/a.py has digests for \['1.0', '1.1'\]"),
        ("Sha256: demo/a.py", "Sha256: demo/c.py", "the header has digests of"),
        ("demo/a.py", "/demo/a.py", "refuses the path '/demo/a.py'"),
        ("demo/a.py", "../a.py", r"refuses the path '\.\./a\.py'"),
        ("demo/a.py", "demo/../../a.py", "refuses the path"),
        ("demo/a.py", "a.py", "refuses the path 'a.py'"),
        ("+++ b/demo/a.py", "+++ b/demo/c.py", "not the start of a file's diff"),
        ("--- a/demo/a.py", "--- /dev/null", "not the start of a file's diff"),
        ("@@ -1,3 +1,3 @@", "@@ -1,3 +1,4 @@", "does not have the lines that its range promises"),
        ("@@ -1,3 +1,3 @@", "@@ -1,2 +1,2 @@", "not the start of a file's diff: ' three'"),
        ("@@ -1,3 +1,3 @@", "@@ one @@", "not a range"),
        ("-two", "\\ No newline at end of file", "does not have the lines"),
        (" three", "three", "does not have the lines"),
    ],
)
def test_what_is_not_understood_is_an_error(old: str, new: str, message: str) -> None:
    text = patch_text()
    assert old in text
    with pytest.raises(PatchError, match=message):
        parse("0001-demo", text.replace(old, new))


def test_two_digests_for_one_version() -> None:
    twice = f"Sha256: demo/a.py {sha('1')} {sha('2')} 1.0\n"
    with pytest.raises(PatchError, match="two digests for one version"):
        demo_patch(more=twice)


def test_a_file_that_is_changed_twice() -> None:
    with pytest.raises(PatchError, match=r"demo/a\.py has no change, or two diffs"):
        parse("0001-demo", patch_text() + diff("demo/a.py", BEFORE["demo/a.py"], AFTER["demo/a.py"]))


def file_diff(before: str, after: str) -> FileDiff:
    return demo_patch(before={"demo/a.py": before}, after={"demo/a.py": after}).files[0]


def test_a_change_is_found_at_other_lines() -> None:
    change = file_diff("a\nb\nc\n", "a\nB\nc\n")
    assert change.patched(b"new\nlines\na\nb\nc\nand more\n") == b"new\nlines\na\nB\nc\nand more\n"


@pytest.mark.parametrize(("text", "times"), [("a\nb\nC\n", 0), ("a\nb\nc\na\nb\nc\n", 2), (" a\nb\nc\n", 0), ("", 0)])
def test_no_fuzz(text: str, times: int) -> None:
    change = file_diff("a\nb\nc\n", "a\nB\nc\n")
    with pytest.raises(PatchError, match=f"the context of hunk 1 is there {times} times, expected once"):
        change.patched(text.encode())


def test_bytes_that_are_not_lines_of_the_diff_stay() -> None:
    change = file_diff("a\nb\nc\n", "a\nB\nc\n")
    assert change.patched("\x0c é\r\na\nb\nc\nno end".encode()) == "\x0c é\r\na\nB\nc\nno end".encode()
