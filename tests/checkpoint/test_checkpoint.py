"""The open checkpoint: exact rows, whole sets behind one table, a hash of the headers alone."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small
from support.gguf_bytes import TensorSpec

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import MetadataError

Q8 = bytes(range(256)) * 4  # 30 blocks of 34 bytes and a rest
ROWS = [slice(0, 1), slice(2, 5), slice(4, 5), slice(0, 5), slice(3, 3), slice(None), slice(-2, None), slice(7, 9)]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_rows_are_exactly_those_bytes(tmp_path: Path, rows: slice) -> None:
    data = Q8[: 5 * 2 * 34]
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.build([], [TensorSpec("pad"), TensorSpec("q", (64, 5), gb.Q8_0, data)]))
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensors["q"]
        expected = b"".join([data[i * 68 : (i + 1) * 68] for i in range(5)][rows])
        assert checkpoint.read(tensor, rows=rows) == expected
        buffer = bytearray(len(expected))
        checkpoint.read_into(tensor, memoryview(buffer), rows)
        assert buffer == expected
        assert checkpoint.read(tensor) == data


def test_rows_of_a_stack_run_through_all_its_matrices(tmp_path: Path) -> None:
    data = bytes(range(24)) * 4
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.build([], [TensorSpec("stack", (2, 3, 4), gb.F32, data)]))
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensors["stack"]
        assert (tensor.rows, tensor.row_bytes) == (12, 8)
        assert checkpoint.read(tensor, slice(5, 7)) == data[40:56]


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        tensor = checkpoint.tensors["output.weight"]
        with pytest.raises(ValueError, match=r"output\.weight: rows must be contiguous"):
            checkpoint.read(tensor, slice(0, 4, 2))
        with pytest.raises(ValueError, match=r"output\.weight: buffer of 3 bytes for 256"):
            checkpoint.read_into(tensor, memoryview(bytearray(3)), slice(0, 1))


def test_the_hash_is_over_each_header_s_length_and_bytes(tmp_path: Path) -> None:
    """Longer than what is read at once, and not a multiple of it."""
    changes = {0: {"note": (gb.STRING, "x" * 700_001)}}
    digest = hashlib.sha256()
    paths = small.write_splits(tmp_path, [small.llama_tensors()[:9], small.llama_tensors()[9:]], changes=changes)
    with open_checkpoint(paths[0]) as checkpoint:
        for path, split in zip(paths, checkpoint.splits, strict=True):
            header = path.read_bytes()[: split.header.data_offset]
            digest.update(len(header).to_bytes(8, "little") + header)
        assert checkpoint.splits[0].header.data_offset > 700_000
        assert checkpoint.header_hash() == digest.hexdigest()


def test_a_path_may_be_text(tmp_path: Path) -> None:
    with open_checkpoint(str(small.write_llama(tmp_path / "m.gguf"))) as checkpoint:
        assert checkpoint.path == tmp_path / "m.gguf"


def test_name_is_the_header_s_or_the_file_s(tmp_path: Path) -> None:
    with open_checkpoint(small.write_llama(tmp_path / "m.gguf")) as checkpoint:
        assert checkpoint.name == "small"
    metadata = small.llama_metadata()
    del metadata["general.name"]
    with open_checkpoint(small.write_llama(tmp_path / "My Model.gguf", metadata)) as checkpoint:
        assert checkpoint.name == "My Model"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, r"general\.architecture is missing"),
        ((gb.UINT32, 1), "should be a string, found u32"),
        ((gb.STRING, b"ll\xffma"), "not valid UTF-8"),
    ],
)
def test_architecture_must_be_text(tmp_path: Path, entry: tuple[int, object] | None, message: str) -> None:
    metadata = small.llama_metadata()
    del metadata["general.architecture"]
    if entry is not None:
        metadata["general.architecture"] = entry
    path = small.write_llama(tmp_path / "m.gguf", metadata)
    with open_checkpoint(path) as checkpoint, pytest.raises(MetadataError, match=message):
        _ = checkpoint.architecture


def test_header_hash_is_of_the_headers_alone(tmp_path: Path) -> None:
    def digest(path: Path) -> str:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.header_hash()

    first = small.write_llama(tmp_path / "a.gguf")
    assert digest(first) == digest(small.write_llama(tmp_path / "b.gguf"))
    other_data = small.replaced(small.llama_tensors(), TensorSpec("output_norm.weight", (small.HIDDEN,)))
    assert digest(first) == digest(small.write_llama(tmp_path / "c.gguf", tensors=other_data))
    other_key = small.llama_metadata() | {"general.name": (gb.STRING, "smell")}
    assert digest(first) != digest(small.write_llama(tmp_path / "d.gguf", other_key))
    parts = [small.llama_tensors()[:9], small.llama_tensors()[9:]]
    paths = small.write_splits(tmp_path / "set", parts)
    assert digest(paths[0]) == digest(paths[1]) != digest(first)
