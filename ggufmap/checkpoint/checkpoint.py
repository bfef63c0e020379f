"""A whole checkpoint: one or several splits behind one tensor table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ggufmap.checkpoint.ggml_types import GgmlType
from ggufmap.checkpoint.header import Header, check_data, parse_header
from ggufmap.checkpoint.metadata import Metadata
from ggufmap.checkpoint.source import ByteSource, LocalFile
from ggufmap.checkpoint.splits import check_set, members, model_file
from ggufmap.errors import FileError

_HASH_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """A GGUF tensor. `shape` is in numpy order: (..., rows, columns); data lies at `offset` of split `split`."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    split: int
    offset: int
    nbytes: int
    order: str

    @property
    def columns(self) -> int:
        """Length of a row, the axis along which quantised blocks run."""
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        """Number of rows: the product of all axes but the last."""
        return self.elements // self.columns if self.columns else 0

    @property
    def elements(self) -> int:
        """Number of values."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the file."""
        return self.type.row_bytes(self.columns)


@dataclass(frozen=True, slots=True)
class Split:
    """One file of the set."""

    source: ByteSource
    header: Header


class Checkpoint:
    """An open GGUF checkpoint. Build it with `open_checkpoint`; use it as a context manager."""

    def __init__(self, path: Path, splits: tuple[Split, ...]) -> None:
        self.path = path
        self.splits = splits
        self.metadata: Metadata = splits[0].header.metadata
        self.tensors: Mapping[str, Tensor] = _union(splits)

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.metadata.string("general.architecture")

    @property
    def name(self) -> str:
        """`general.name`, or the file's stem."""
        return self.metadata.string("general.name", self.path.stem)

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(split.source.size for split in self.splits)

    def read(self, tensor: Tensor, rows: slice | None = None) -> bytes:
        """The stored bytes of `rows` (all by default; a slice with step 1 over `tensor.rows`).

        Raises FileError when the file no longer holds them, UnsupportedError when the type has no known size.
        """
        offset, length = self._span(tensor, rows)
        return self.splits[tensor.split].source.read(offset, length)

    def read_into(self, tensor: Tensor, buffer: memoryview, rows: slice | None = None) -> None:
        """As `read`, into a writable byte buffer of exactly the right size."""
        offset, length = self._span(tensor, rows)
        if len(buffer) != length:
            raise ValueError(f"{tensor.name}: buffer of {len(buffer)} bytes for {length}")
        self.splits[tensor.split].source.read_into(offset, buffer)

    def header_hash(self) -> str:
        """SHA-256 over the headers of all splits (metadata and tensor tables, no tensor data), in hex."""
        digest = hashlib.sha256()
        for split in self.splits:
            end = min(split.header.data_offset, split.source.size)
            digest.update(end.to_bytes(8, "little"))
            for start in range(0, end, _HASH_CHUNK):
                digest.update(split.source.read(start, min(_HASH_CHUNK, end - start)))
        return digest.hexdigest()

    def close(self) -> None:
        """Close all files."""
        for split in self.splits:
            split.source.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _span(self, tensor: Tensor, rows: slice | None) -> tuple[int, int]:
        tensor.type.require_usable(tensor.name)
        if rows is None:
            return tensor.offset, tensor.nbytes
        first, last, step = rows.indices(tensor.rows)
        if step != 1:
            raise ValueError(f"{tensor.name}: rows must be contiguous")
        return tensor.offset + first * tensor.row_bytes, max(last - first, 0) * tensor.row_bytes


def open_checkpoint(path: Path, *, check: bool = True) -> Checkpoint:
    """Open the checkpoint at `path`: a file, any split of a set, or a folder that holds one model.

    With `check` false, tensor data may be missing (a file cut after its header still opens).
    Raises FileError for anything that is not a complete, well-formed GGUF set.
    """
    opened: list[Split] = []
    try:
        named = model_file(path)
        opened.append(_open_split(named, check))
        files = members(named, opened[0].header)
        if len(files) > 1:
            opened.extend(_open_split(file, check) for file in files if file != named)
            opened.sort(key=lambda split: files.index(Path(split.source.name)))
        check_set([(split.source.name, split.header) for split in opened])
        return Checkpoint(files[0], tuple(opened))
    except BaseException:
        for split in opened:
            split.source.close()
        raise


def _open_split(file: Path, check: bool) -> Split:
    source = LocalFile(file)
    try:
        header = parse_header(source)
        if check:
            check_data(header, source)
    except BaseException:
        source.close()
        raise
    return Split(source, header)


def _union(splits: tuple[Split, ...]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for index, split in enumerate(splits):
        for info in split.header.tensors:
            if info.name in tensors:
                other = splits[tensors[info.name].split].source.name
                raise FileError(f"{split.source.name}: tensor {info.name} is also in {other}")
            tensors[info.name] = Tensor(
                info.name, info.type, info.shape, index, info.offset, info.nbytes, split.header.order
            )
    return tensors
