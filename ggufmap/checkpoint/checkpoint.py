"""A whole checkpoint: one or several splits behind one tensor table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ggufmap.checkpoint.draft import check_same_model, draft_tensors
from ggufmap.checkpoint.header import Header, check_data, parse_header
from ggufmap.checkpoint.metadata import Metadata
from ggufmap.checkpoint.projector import check_names, check_projector, projector_type, projectors_beside
from ggufmap.checkpoint.source import ByteSource, LocalFile, Place
from ggufmap.checkpoint.splits import check_set, members, model_file
from ggufmap.checkpoint.tensor import Tensor
from ggufmap.errors import FileError, GgufmapError

_HASH_CHUNK = 1 << 18  # bytes: still in a core's cache when they are hashed
_AT_ONCE = 8
"""Remote splits that are opened at a time."""


@dataclass(frozen=True, slots=True)
class Split:
    """One file of the set."""

    source: ByteSource
    header: Header
    place: Place


class Checkpoint:
    """An open GGUF checkpoint. Build it with `open_checkpoint`; use it as a context manager."""

    def __init__(
        self,
        path: Place,
        splits: tuple[Split, ...],
        draft: tuple[Split, ...] = (),
        projector: tuple[Split, ...] = (),
        projector_note: str = "",
    ) -> None:
        """`draft` are the splits of a separate draft file: their nextn blocks join the tensor table.

        `projector` are those of a multimodal projector, whose tensors join it as well; `projector_note` says why one
        beside the model was not taken.
        """
        self.path = path
        self.splits = splits + draft + projector
        self.own_splits = len(splits)
        self.metadata: Metadata = splits[0].header.metadata
        self.draft_path = draft[0].place if draft else None
        self.projector: Metadata | None = projector[0].header.metadata if projector else None
        self.projector_path = projector[0].place if projector else None
        self.projector_note = projector_note
        tensors = _union(splits)
        if draft:
            tensors.update(draft_tensors(tensors, _union(draft, first=len(splits)), draft[0].source.name))
        tower = _union(projector, first=len(splits) + len(draft))
        if projector:
            check_names(tensors, tower, projector[0].source.name)
        self.projector_tensors = frozenset(tower)
        self.tensors: Mapping[str, Tensor] = {**tensors, **tower}

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.metadata.string("general.architecture")

    @property
    def name(self) -> str:
        """`general.name`, or the file's stem."""
        return self.metadata.string("general.name", self.path.stem)

    @property
    def projector_type(self) -> str:
        """The kind of the multimodal projector; empty without one."""
        return "" if self.projector is None else projector_type(self.projector)

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
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_HASH_CHUNK))
        for split in self.splits:
            end = min(split.header.data_offset, split.source.size)
            digest.update(end.to_bytes(8, "little"))
            for start in range(0, end, _HASH_CHUNK):
                part = buffer[: end - start]
                split.source.read_into(start, part)
                digest.update(part)
        return digest.hexdigest()

    def close(self) -> None:
        """Close all files."""
        _close(self.splits)

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


def open_checkpoint(
    path: Place | str,
    *,
    check: bool = True,
    draft: Place | str | None = None,
    mmproj: Place | str | None = None,
    look_beside: bool = False,
) -> Checkpoint:
    """Open the checkpoint at `path`: a file, any split of a set, or a local folder that holds one model.

    With `check` false, tensor data may be missing (a file cut after its header still opens). `draft` is a separate
    file with the draft blocks of the same model (llama.cpp's `mtp-*.gguf`), `mmproj` one with its multimodal projector.
    With `look_beside`, and no `mmproj`, the one such file in the model's folder is taken if it fits.
    Raises FileError for anything that is not a complete, well-formed GGUF set, UsageError for a foreign draft or
    projector.
    """
    with ExitStack() as opened:
        splits = _open_set(path, check)
        opened.callback(_close, splits)
        model, file = splits[0].header.metadata, splits[0].place

        def side(named: Place | str | None, fits: Callable[[Metadata, Metadata], None]) -> tuple[Split, ...]:
            if named is None:
                return ()
            found = _open_set(named, check)
            opened.callback(_close, found)
            fits(model, found[0].header.metadata)
            return found

        drafts = side(draft, check_same_model)
        note = ""
        if mmproj is None and look_beside:
            mmproj, note = _beside(file, model, check)
        checkpoint = Checkpoint(file, splits, drafts, side(mmproj, check_projector), note)
        opened.pop_all()
        return checkpoint


def _beside(model: Place, metadata: Metadata, check: bool) -> tuple[Place | None, str]:
    """The projector beside `model`, or why none of those that are there is taken."""
    found: Sequence[Place] = projectors_beside(model) if isinstance(model, Path) else model.projectors()
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        return None, f"images are off: {len(found)} projectors lie beside the model ({names}); name one with --mmproj"
    for file in found:
        try:
            splits = _open_set(file, check)
            _close(splits)
            check_projector(metadata, splits[0].header.metadata)
        except GgufmapError as e:
            return None, f"images are off: the projector beside the model is not taken: {e.message}"
    return (found[0] if found else None), ""


def _close(splits: Sequence[Split]) -> None:
    for split in splits:
        split.source.close()


def _open_set(path: Place | str, check: bool) -> tuple[Split, ...]:
    opened: list[Split] = []
    try:
        named = model_file(Path(path)) if isinstance(path, (Path, str)) else path
        opened.append(_open_split(named, check))
        files = members(named, opened[0].header)
        opened += _open_others([file for file in files if file != named], check)
        opened.sort(key=lambda split: files.index(split.place))
        check_set([(split.source.name, split.header) for split in opened])
        return tuple(opened)
    except BaseException:
        _close(opened)
        raise


def _open_others(files: Sequence[Place], check: bool) -> list[Split]:
    """The rest of a set; remote ones side by side."""
    with ThreadPoolExecutor(1 if all(isinstance(file, Path) for file in files) else _AT_ONCE) as pool:
        running = [pool.submit(_open_split, file, check) for file in files]
    opened = [each.result() for each in running if each.exception() is None]
    failed = next((error for each in running if (error := each.exception()) is not None), None)
    if failed is not None:
        _close(opened)
        raise failed
    return opened


def _open_split(file: Place, check: bool) -> Split:
    source = LocalFile(file) if isinstance(file, Path) else file.open()
    try:
        header = parse_header(source)
        if not isinstance(source, LocalFile):
            source.header_ends(header.data_offset)
        if check:
            check_data(header, source)
    except BaseException:
        source.close()
        raise
    return Split(source, header, file)


def _union(splits: tuple[Split, ...], first: int = 0) -> dict[str, Tensor]:
    """The tensor table of a set whose splits are numbered from `first`."""
    tensors: dict[str, Tensor] = {}
    for index, split in enumerate(splits, start=first):
        for info in split.header.tensors:
            if info.name in tensors:
                other = splits[tensors[info.name].split - first].source.name
                raise FileError(f"{split.source.name}: tensor {info.name} is also in {other}")
            tensors[info.name] = Tensor(
                info.name, info.type, info.shape, index, info.offset, info.nbytes, split.header.order
            )
    return tensors
