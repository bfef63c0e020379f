"""Files over HTTP, from servers that are right, wrong and hostile: real sockets on loopback."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from remote.conftest import LIMITS, Serve
from support import gguf_bytes as gb
from support import small_models as small
from support.http_server import Fault
from support.speed import slack

from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.errors import FileError, GgufmapError
from ggufmap.remote import locate
from ggufmap.remote.http import next_url, origin
from ggufmap.remote.limits import RemoteLimits


def opened(url: str, limits: RemoteLimits = LIMITS) -> Checkpoint:
    return open_checkpoint(locate(url, limits))


@pytest.fixture
def big(folder: Path) -> Path:
    """A file whose header takes several windows, with tensor data that is a hole."""
    tokens = [f"token {number:07d}".encode() for number in range(200_000)]
    metadata = small.llama_metadata() | {
        "tokenizer.ggml.tokens": (gb.ARRAY, gb.Array(gb.STRING, tokens)),
        "tokenizer.ggml.token_type": (gb.ARRAY, gb.Array(gb.INT32, [1] * len(tokens))),
    }
    path = small.write_llama(folder / "big.gguf", metadata)
    with path.open("r+b") as file:
        file.truncate(10 << 30)
    return path


def test_a_header_is_read_as_from_a_local_file(serve: Serve, folder: Path, big: Path) -> None:
    server = serve()
    for name in ("m.gguf", "big.gguf"):
        with opened(server.url(name)) as remote, open_checkpoint(folder / name) as local:
            assert remote.tensors == local.tensors
            assert remote.nbytes == local.nbytes
            assert remote.header_hash() == local.header_hash()
            assert (str(remote.path), remote.name) == (server.url(name), local.name)
            for key in local.metadata:
                mine, other = remote.metadata.get(key), local.metadata.get(key)
                assert mine is not None and other is not None and mine.type == other.type
            if name == "big.gguf":
                assert remote.metadata.raw_strings("tokenizer.ggml.tokens")[-1] == b"token 0199999"


def test_windows_grow_and_stop_behind_the_header(serve: Serve, big: Path) -> None:
    server = serve()
    with opened(server.url("big.gguf")) as checkpoint:
        header = checkpoint.splits[0].header.data_offset
    ranges = server.ranges("/big.gguf")
    assert ranges[0] == (0, LIMITS.first_bytes - 1)
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]  # nothing twice
    assert header <= ranges[-1][1] + 1 < header + LIMITS.window_bytes
    assert len(ranges) <= 6
    assert server.sent == ranges[-1][1] + 1


def test_a_small_piece_of_data_can_be_read_and_no_large_one(serve: Serve, big: Path) -> None:
    server = serve()
    with opened(server.url("big.gguf")) as remote, open_checkpoint(big) as local:
        norm = local.tensors["output_norm.weight"]
        assert remote.read(norm) == local.read(norm)
        far = 5 << 30
        assert remote.splits[0].source.read(far, 256) == bytes(256)
        assert server.ranges("/big.gguf")[-1] == (far, far + 255)
        with pytest.raises(FileError, match="only headers are read over the network"):
            remote.splits[0].source.read(far, LIMITS.piece_bytes + 1)
        with pytest.raises(FileError, match="the file has"):
            remote.splits[0].source.read(remote.nbytes, 1)


def test_splits_are_found_by_name_and_fetched_side_by_side(serve: Serve, folder: Path) -> None:
    tensors = small.llama_tensors()
    paths = small.write_splits(folder, [[tensor] for tensor in tensors])
    server = serve(delay=0.1)
    with opened(server.url(paths[3].name)) as checkpoint:
        assert [split.place.name for split in checkpoint.splits] == [path.name for path in paths]
        assert len(checkpoint.tensors) == len(tensors)
    assert len(server.requests) == len(paths) == 21
    assert server.most_waiting >= 4


def test_a_missing_split_is_named(serve: Serve, folder: Path) -> None:
    paths = small.write_splits(folder, [small.llama_tensors()[:9], small.llama_tensors()[9:]])
    paths[1].unlink()
    server = serve()
    with pytest.raises(FileError, match=rf"{paths[1].name}: is not there \(HTTP 404\)"):
        opened(server.url(paths[0].name))


@pytest.mark.parametrize(
    "fault", [Fault.NO_ETAG, Fault.WEAK_ETAG, Fault.IGNORES_RANGES, Fault.NONE], ids=lambda fault: fault.name
)
def test_servers_that_are_good_enough(serve: Serve, folder: Path, big: Path, fault: Fault) -> None:
    server = serve(fault)
    for name in ("m.gguf", "big.gguf"):
        with opened(server.url(name)) as remote, open_checkpoint(folder / name) as local:
            assert remote.header_hash() == local.header_hash()


def test_a_server_that_ignores_ranges_is_hung_up_on(serve: Serve, big: Path) -> None:
    server = serve(Fault.IGNORES_RANGES)
    with opened(server.url("big.gguf")) as checkpoint:
        header = checkpoint.splits[0].header.data_offset
        with pytest.raises(FileError, match="ignores ranges: 64 bytes at offset"):
            checkpoint.splits[0].source.read(1 << 30, 64)
    assert server.sent < 3 * header + 40_000_000  # of 10 GiB; what the sockets hold comes on top


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault.IGNORES_RANGES_NO_LENGTH, "ignores ranges and does not say how long the file is"),
        (Fault.ENDLESS_WHOLE, "does not say how long"),
        (Fault.OTHER_RANGE, r"bytes 0-262143 were asked for, the server gives 'bytes 1-"),
        (Fault.NO_CONTENT_RANGE, "a part without saying which"),
        (Fault.ENDLESS, "sends more than the \\d+ bytes that it announced"),
        (Fault.TOO_LONG, "sends more than the \\d+ bytes"),
        (Fault.SHORT, r"the answer ends after \d+ of \d+ bytes \(tried 4 times\)"),
        (Fault.DROPS, r"the connection failed .*|connection reset.*"),
        (Fault.BUSY, r"the server answers 503 \(tried 4 times\)"),
        (Fault.TOO_MANY, "the server answers 429"),
        (Fault.NEVER_NOW, "the server answers 429"),
        (Fault.GZIP, "sends it encoded"),
        (Fault.LOOP, "more than 5 redirects"),
        (Fault.TO_FILE, "redirects to no web address"),
        (Fault.NOWHERE, "redirects to no web address"),
        (Fault.HTML, "it is an HTML page"),
        (Fault.HUGE_HEADERS, r"the connection failed|tried 4 times"),
        (Fault.SLOW, r"no whole answer within 0\.5 s"),
        (Fault.SLOW_HEADERS, r"no whole answer within 0\.5 s"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_what_a_server_does_wrong_is_said(serve: Serve, fault: Fault, message: str) -> None:
    server = serve(fault)
    limits = LIMITS
    if fault in (Fault.SLOW, Fault.SLOW_HEADERS):
        limits = dataclasses.replace(LIMITS, request_s=0.5, attempts=2)
    started = time.monotonic()
    with pytest.raises(GgufmapError, match=message) as e:
        opened(server.url("m.gguf"), limits)
    assert time.monotonic() - started < 5 * slack()
    assert e.value.exit_code == 2 and server.root in e.value.message
    assert server.sent < 8 << 20


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault.CHANGES, "was changed on the server while it was read"),
        (Fault.PRECONDITION, "was changed on the server while it was read"),
        (Fault.GROWS, "was changed on the server while it was read"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_a_file_may_not_change_between_two_ranges(serve: Serve, big: Path, fault: Fault, message: str) -> None:
    server = serve(fault)
    with pytest.raises(FileError, match=message):
        opened(server.url("big.gguf"))
    assert server.requests[1].headers["if-match"].startswith('"')


def test_a_file_may_not_change_before_it_is_used(serve: Serve, folder: Path) -> None:
    server = serve()
    with opened(server.url("m.gguf")) as checkpoint:
        checkpoint.splits[0].source.require_unchanged()
        small.write_llama(folder / "m.gguf", tensors=small.llama_tensors(tied=True))
        with pytest.raises(FileError, match="was changed"):
            checkpoint.splits[0].source.require_unchanged()


@pytest.mark.parametrize("fault", [Fault.DROPS, Fault.BUSY, Fault.TOO_MANY, Fault.SHORT], ids=lambda fault: fault.name)
def test_what_passes_is_tried_again(serve: Serve, fault: Fault) -> None:
    server = serve(fault, times=2)
    with opened(server.url("m.gguf")) as checkpoint:
        assert checkpoint.architecture == "llama"
    assert len(server.requests) == 3


def test_retry_after_is_honoured_within_its_bound(serve: Serve) -> None:
    server = serve(Fault.NEVER_NOW, times=1)
    started = time.monotonic()
    with opened(server.url("m.gguf"), dataclasses.replace(LIMITS, longest_wait_s=0.5)):
        assert 0.5 <= time.monotonic() - started < 2 * slack()
    server = serve(Fault.BUSY, times=1)  # Retry-After: 0
    started = time.monotonic()
    with opened(server.url("m.gguf"), dataclasses.replace(LIMITS, backoff_s=9, longest_wait_s=9)):
        assert time.monotonic() - started < 2 * slack()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/m.gguf", "connection refused"),
        ("http://no-such-host.invalid/m.gguf", "the host's name is not known"),
        ("https://127.0.0.1:{port}/m.gguf", "not trusted|wrong version|the connection failed|tried"),
    ],
)
def test_a_server_that_is_not_there(serve: Serve, url: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        opened(url.format(port=serve().port), dataclasses.replace(LIMITS, attempts=2))


def test_headers_are_bounded_for_a_file_and_for_all_files(serve: Serve, folder: Path, big: Path) -> None:
    server = serve()
    with pytest.raises(FileError, match="its header goes on beyond 1 MiB"):
        opened(server.url("big.gguf"), dataclasses.replace(LIMITS, header_bytes=1 << 20))
    paths = small.write_splits(folder, [[tensor] for tensor in small.llama_tensors()])
    with pytest.raises(FileError, match="more than 0 MiB were fetched"):
        opened(server.url(paths[0].name), dataclasses.replace(LIMITS, total_bytes=30_000))


def test_an_array_that_claims_to_be_huge_is_not_fetched(serve: Serve, folder: Path) -> None:
    """A skip of 9 GiB costs nothing in a local file."""
    many = (9 << 30) // 4
    with (folder / "huge.gguf").open("wb") as file:
        file.write(gb.build([("k", gb.ARRAY, gb.Array(gb.INT32, [], count=many))]))
        file.truncate(10 << 30)
    server = serve()
    with pytest.raises(FileError, match="its header goes on beyond 128 MiB"):
        opened(server.url("huge.gguf"))
    assert server.sent <= LIMITS.first_bytes


def test_an_empty_file(serve: Serve, folder: Path) -> None:
    (folder / "empty.gguf").touch()
    with pytest.raises(FileError, match="the file is empty"):
        opened(serve().url("empty.gguf"))


def test_a_file_that_is_cut_off(serve: Serve, folder: Path) -> None:
    path = folder / "m.gguf"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileError, match=r"truncated: tensor output\.weight needs"):
        opened(serve().url("m.gguf"))


# Credentials.


def test_a_user_and_a_query_reach_their_server_alone(serve: Serve, folder: Path) -> None:
    elsewhere = serve()
    server = serve(token="Basic dXNlcjpzM2NyM3Q=", redirect={"/m.gguf": elsewhere.url("m.gguf")})
    url = server.url("m.gguf?sig=s3cr3t").replace("://", "://user:s3cr3t@")
    with opened(url) as checkpoint:
        assert str(checkpoint.path) == checkpoint.splits[0].source.name == server.url("m.gguf")
        assert checkpoint.name == "small"
    assert server.requests[0].headers["authorization"] == "Basic dXNlcjpzM2NyM3Q="
    assert server.requests[0].path == "/m.gguf?sig=s3cr3t"
    assert [request.headers.get("authorization") for request in elsewhere.requests] == [None]
    assert "s3cr3t" not in str([(request.path, request.headers) for request in elsewhere.requests])


def test_credentials_stay_on_the_way_within_a_server(serve: Serve) -> None:
    server = serve(token="Basic dTpw", redirect={"/old.gguf": "/m.gguf"})
    with opened(server.url("old.gguf").replace("://", "://u:p@")):
        assert [request.headers["authorization"] for request in server.requests] == ["Basic dTpw"] * 2


def test_netrc_does_not_replace_credentials(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server = serve(token="Basic dTpw")
    with opened(server.url("m.gguf").replace("://", "://u:p@")):
        assert server.requests[0].headers["authorization"] == "Basic dTpw"


def test_refused_access_is_said_with_what_to_do(serve: Serve) -> None:
    with pytest.raises(FileError, match=r"access is refused \(HTTP 401\)") as e:
        opened(serve(token="x").url("m.gguf"))
    assert "hf://ORG/REPO" in (e.value.hint or "")


@pytest.mark.parametrize(
    ("url", "location", "problem"),
    [
        ("https://a.example/m", "http://a.example/m", "from https to http"),
        ("https://a.example/m", "http://b.example/m?sig=secret", "from https to http"),
        ("https://a.example/m", "//127.0.0.1/m", "an address of this machine or its network"),
        ("https://a.example/m", "https://169.254.169.254/latest/meta-data", "an address of this machine"),
        ("https://a.example/m", "https://10.0.0.1/m", "an address of this machine"),
        ("https://a.example/m", "https://[::1]/m", "an address of this machine"),
        ("https://a.example/m", "https://[fe80::1%25eth0]/m", "an address of this machine"),
        ("https://a.example/m", "https://localhost/m", "an address of this machine"),
        ("https://1.1.1.1/m", "https://192.168.1.1/m", "an address of this machine"),
        ("https://a.example/m", "ftp://b.example/m", "no web address"),
        ("https://a.example/m", "https://b:x/m", "no web address"),
        ("https://a.example/m", "", "no web address"),
    ],
)
def test_redirects_that_are_not_followed(url: str, location: str, problem: str) -> None:
    with pytest.raises(FileError, match=problem) as e:
        next_url(url, location, "name")
    assert "secret" not in e.value.message


@pytest.mark.parametrize(
    ("url", "location", "following"),
    [
        ("https://a.example/x/m?a=1", "n?b=2", "https://a.example/x/n?b=2"),
        ("http://a.example/m", "https://b.example/m", "https://b.example/m"),
        ("https://a.example/m", "https://u:p@b.example/m#f", "https://b.example/m"),
        ("http://127.0.0.1:1/m", "http://127.0.0.1:2/m", "http://127.0.0.1:2/m"),
        ("http://localhost:1/m", "http://10.0.0.1/m", "http://10.0.0.1/m"),
    ],
)
def test_redirects_that_are_followed(url: str, location: str, following: str) -> None:
    assert next_url(url, location, "name") == following


def test_an_origin_is_scheme_host_and_port() -> None:
    assert origin("https://A.example/x") == origin("https://a.example:443/y") == ("https", "a.example", 443)
    assert origin("http://a.example") != origin("https://a.example") != origin("https://a.example:444")


# The cache.


def test_a_header_comes_from_the_cache_the_second_time(serve: Serve, big: Path) -> None:
    server = serve()
    with opened(server.url("big.gguf")) as checkpoint:
        first = checkpoint.header_hash()
    server.requests.clear()
    sent = server.sent
    with opened(server.url("big.gguf")) as checkpoint:
        assert checkpoint.header_hash() == first
    assert len(server.requests) == 1 and server.sent - sent == 64


def test_the_cache_is_of_one_version(serve: Serve, folder: Path) -> None:
    server = serve()
    with opened(server.url("m.gguf")) as checkpoint:
        assert "output.weight" in checkpoint.tensors
    small.write_llama(folder / "m.gguf", tensors=small.llama_tensors(tied=True))
    for _ in range(2):
        with opened(server.url("m.gguf")) as checkpoint:
            assert "output.weight" not in checkpoint.tensors


def test_a_spoilt_entry_is_not_used(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    opened(server.url("m.gguf")).close()
    (entry,) = (tmp_path / "cache" / "headers").iterdir()
    header = bytearray((entry / "header.bin").read_bytes())
    header[-1] ^= 1
    (entry / "header.bin").write_bytes(header)
    with opened(server.url("m.gguf")) as checkpoint:
        assert len(checkpoint.tensors) == len(small.llama_tensors())
    header[-1] ^= 1
    assert (entry / "header.bin").read_bytes() == header  # made again


@pytest.mark.parametrize("fault", [Fault.NO_ETAG, Fault.WEAK_ETAG])
def test_what_cannot_be_told_from_another_version_is_not_cached(serve: Serve, tmp_path: Path, fault: Fault) -> None:
    opened(serve(fault).url("m.gguf")).close()
    assert not (tmp_path / "cache" / "headers").exists()


@pytest.mark.parametrize("url", ["{root}/m.gguf?sig=s3cr3t", "http://u:s3cr3t@{host}/m.gguf"])
def test_what_may_be_for_one_user_alone_is_not_cached(serve: Serve, tmp_path: Path, url: str) -> None:
    root = serve().root
    opened(url.format(root=root, host=root.removeprefix("http://"))).close()
    assert not (tmp_path / "cache" / "headers").exists()


def test_a_cache_that_cannot_be_written_is_no_error(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GGUFMAP_CACHE", str(tmp_path / "file"))
    with opened(serve().url("m.gguf")) as checkpoint:
        assert checkpoint.architecture == "llama"
