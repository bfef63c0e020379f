"""Objects of S3, from moto's server: a real one on loopback that boto3 talks to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote.conftest import LIMITS, Serve
from support import small_models as small
from support.http_server import Fault

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import FileError
from ggufmap.remote import locate


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of a server with an empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def settings(patch: pytest.MonkeyPatch, endpoint: str, key: str | None = "s3cr3tKey") -> None:
    patch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if key is None:
            patch.delenv(name, raising=False)
        else:
            patch.setenv(name, key)


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """boto3's client, with a bucket called `models`."""
    import boto3

    settings(monkeypatch, s3)
    client = boto3.client("s3")
    client.create_bucket(Bucket="models")
    return client


def test_a_set_is_read_by_ranges(bucket: Any, tmp_path: Path) -> None:
    paths = small.write_splits(tmp_path, [small.llama_tensors()[:9], small.llama_tensors()[9:]])
    for path in paths:
        bucket.upload_file(str(path), "models", f"a b/{path.name}")
    with (
        open_checkpoint(locate(f"s3://models/a b/{paths[1].name}", LIMITS)) as remote,
        open_checkpoint(paths[0]) as local,
    ):
        assert remote.header_hash() == local.header_hash() and remote.tensors == local.tensors
        assert [str(split.place) for split in remote.splits] == [f"s3://models/a b/{path.name}" for path in paths]
        norm = local.tensors["output_norm.weight"]
        assert remote.read(norm) == local.read(norm)


def test_an_object_may_not_change_and_the_cache_is_of_one_version(bucket: Any, tmp_path: Path) -> None:
    path = small.write_llama(tmp_path / "m.gguf")
    bucket.upload_file(str(path), "models", "m.gguf")
    with open_checkpoint(locate("s3://models/m.gguf", LIMITS)) as checkpoint:
        checkpoint.splits[0].source.require_unchanged()
        bucket.upload_file(
            str(small.write_llama(tmp_path / "n.gguf", tensors=small.llama_tensors(tied=True))), "models", "m.gguf"
        )
        with pytest.raises(FileError, match=r"s3://models/m\.gguf: was changed on the server"):
            checkpoint.splits[0].source.require_unchanged()
    assert len(list((tmp_path / "cache" / "headers").iterdir())) == 1
    with open_checkpoint(locate("s3://models/m.gguf", LIMITS)) as checkpoint:
        assert "output.weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("s3://models/none.gguf", r"is not there \(HTTP 404\)"),
        ("s3://no-such-bucket/m.gguf", r"is not there \(HTTP 404\)"),
        ("s3://models/empty.gguf", "the file is empty"),
    ],
)
def test_objects_that_are_not_there(bucket: Any, reference: str, message: str) -> None:
    bucket.put_object(Bucket="models", Key="empty.gguf", Body=b"")
    with pytest.raises(FileError, match=message):
        open_checkpoint(locate(reference, LIMITS))


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(FileError, match=r"s3://b/m\.gguf: connection refused \(tried 4 times\)"):
        open_checkpoint(locate("s3://b/m.gguf", LIMITS))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault.OTHER_RANGE, "were asked for, the server gives"),
        (Fault.IGNORES_RANGES, "the server ignores ranges"),
        (Fault.SHORT, "the answer|the connection failed"),
        (Fault.DROPS, r"\(tried 4 times\)"),
        (Fault.BUSY, r"the server answers 503 \(tried 4 times\)"),
        (Fault.SLOW_HEADERS, "no whole answer within 2 s"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_what_a_server_does_wrong_is_said(
    serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, message: str
) -> None:
    import dataclasses

    (folder / "b").mkdir()
    with small.write_llama(folder / "b" / "m.gguf").open("r+b") as file:
        file.truncate(1 << 20)
    server = serve(fault)
    settings(monkeypatch, server.root)
    attempts = 1 if fault is Fault.SLOW_HEADERS else LIMITS.attempts
    with pytest.raises(FileError, match=message) as e:
        open_checkpoint(locate("s3://b/m.gguf", dataclasses.replace(LIMITS, attempts=attempts)))
    assert "s3cr3tKey" not in str(e.value)


def test_a_public_bucket_needs_no_credentials(serve: Serve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "b").mkdir()
    small.write_llama(folder / "b" / "m.gguf")
    server = serve()
    settings(monkeypatch, server.root, key=None)
    with open_checkpoint(locate("s3://b/m.gguf", LIMITS)) as checkpoint:
        assert checkpoint.architecture == "llama"
    assert "authorization" not in server.requests[0].headers
    settings(monkeypatch, server.root)
    with open_checkpoint(locate("s3://b/m.gguf", LIMITS)):
        assert server.requests[-1].headers["authorization"].startswith("AWS4-HMAC-SHA256 ")
