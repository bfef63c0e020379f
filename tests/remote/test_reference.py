"""What a MODEL argument means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufmap.errors import UsageError
from ggufmap.remote.reference import HubReference, S3Reference, UrlReference, parse, redacted, safe


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("hf://org/repo", HubReference("org/repo")),
        ("hf://org/repo:Q4_K_M", HubReference("org/repo", tag="Q4_K_M")),
        ("HF://unsloth/GLM-5-GGUF:UD-Q4_K_XL", HubReference("unsloth/GLM-5-GGUF", tag="UD-Q4_K_XL")),
        ("hf://org/repo@main:q8_0", HubReference("org/repo", "main", "q8_0")),
        ("hf://org/repo@refs%2Fpr%2F1/a.gguf", HubReference("org/repo", "refs/pr/1", path="a.gguf")),
        ("hf://org/re.po/Q4_K_M/a b.gguf", HubReference("org/re.po", path="Q4_K_M/a b.gguf")),
        ("s3://bucket/a/b.gguf", S3Reference("bucket", "a/b.gguf")),
        ("https://h/m.gguf?sig=1", UrlReference("https://h/m.gguf?sig=1")),
        ("http://u:p@h:81/m.gguf", UrlReference("http://u:p@h:81/m.gguf")),
        ("models/m.gguf", Path("models/m.gguf")),
        ("/a/b", Path("/a/b")),
        (".", Path()),
        ("no-such.gguf", Path("no-such.gguf")),
    ],
)
def test_a_reference_means(text: str, meaning: object) -> None:
    assert parse(text) == meaning


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("file:///etc/passwd", "file:// is not supported", "without a scheme"),
        ("gs://b/m.gguf", "known are hf, https, http and s3", ""),
        ("hf://repo", "not a reference to a model of the hub", "hf://ORG/REPO:TAG"),
        ("hf://org/repo/", "not a reference", ""),
        ("hf://org/repo/sub", "sub is not the path of a .gguf file", ""),
        ("hf://org/repo/../../x.gguf", "not the path", ""),
        ("hf://org/repo/a//x.gguf", "not the path", ""),
        ("hf://org/repo:a/b", "not a reference", ""),
        ("s3://bucket", "a bucket and a key are expected", "s3://BUCKET/PATH"),
        ("s3://bucket/folder/", "a bucket and a key", ""),
        ("https://host", "the URL of a .gguf file is expected", "not its folder"),
        ("https://u:secret@host/folder/?token=secret", "https://host/folder/: the URL", ""),
        ("http://h:port/m.gguf", "not a URL", ""),
        ("http://[::1/m.gguf", "not a URL", ""),
        ("org/repo:Q4_K_M", "no such file or folder", "write hf://org/repo:Q4_K_M"),
        ("org/repo", "no such file or folder", "write hf://org/repo"),
    ],
)
def test_what_is_no_reference_is_said(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        parse(text)
    assert message in e.value.message and "secret" not in e.value.message
    assert hint in (e.value.hint or "")


def test_a_local_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "repo:Q4").mkdir(parents=True)
    assert parse("org/repo:Q4") == Path("org/repo:Q4")


def test_secrets_of_a_url_are_not_shown() -> None:
    url = "https://user:secret@host:8443/a%20b/m.gguf?X-Amz-Signature=secret#secret"
    assert redacted(url) == "https://host:8443/a%20b/m.gguf"
    assert "secret" not in repr(UrlReference(url))


@pytest.mark.parametrize("name", ["", "../x", "/x", "a/../b", "a//b", "a/./b", "a\\b", "a\0b", "..", "a/"])
def test_names_that_would_leave_a_folder(name: str) -> None:
    assert not safe(name)
    assert safe("a/b-c..d.gguf")
