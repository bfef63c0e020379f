"""A real GGUF file, read by gguf-py, changed, and written back: variants of what the converter makes.

`file = read(path)`, then for example `file.set("glm-dsa.block_count", 3)` and
`del file.tensors["blk.3.nextn.eh_proj.weight"]`, then `file.write(other_path)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import libgguf
import numpy as np
import numpy.typing as npt

from support import gguf_bytes as gb
from support.gguf_bytes import TensorSpec


@dataclass(frozen=True)
class Stored:
    """A tensor's ggml type, shape in numpy order, and bytes."""

    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    data: bytes

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The values as float32, decoded by gguf-py."""
        raw = np.frombuffer(self.data, dtype=np.uint8)
        if self.kind is gguf.GGMLQuantizationType.F32:
            return raw.view(np.float32).reshape(self.shape)
        # gguf-py wants the rows of the bytes.
        rows = raw.reshape(*self.shape[:-1], -1)
        return gguf.quants.dequantize(rows, self.kind).reshape(self.shape).astype(np.float32)


def stored(values: npt.NDArray[Any], kind: str = "F32") -> Stored:
    """`values` as a tensor of a type that gguf-py can make."""
    type = gguf.GGMLQuantizationType[kind]
    array = np.ascontiguousarray(values, dtype=np.float32)
    data = array if kind == "F32" else gguf.quants.quantize(array, type)
    return Stored(type, tuple(array.shape), data.tobytes())


def quantised(values: npt.NDArray[Any], kind: str) -> Stored:
    """`values` as a tensor of any type that llama.cpp makes, by libgguf."""
    type = gguf.GGMLQuantizationType[kind]
    rows = libgguf.quantize_rows(values.reshape(-1, values.shape[-1]), int(type))
    return Stored(type, tuple(values.shape), rows.tobytes())


@dataclass
class Edited:
    """Metadata as (type, value) by key, tensors by name, both in file order."""

    metadata: dict[str, tuple[int, Any]] = field(default_factory=dict)
    tensors: dict[str, Stored] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"][1])

    def get(self, key: str) -> Any:
        """A key's value, `{arch}` in it standing for the architecture; None when it is not there."""
        return self.metadata.get(key.replace("{arch}", self.architecture), (0, None))[1]

    def set(self, key: str, value: Any, kind: int | None = None) -> None:
        """Set a key; the type is the one it has, or the natural one."""
        key = key.replace("{arch}", self.architecture)
        natural = {bool: gb.BOOL, int: gb.UINT32, float: gb.FLOAT32, str: gb.STRING, gb.Array: gb.ARRAY}
        self.metadata[key] = (self.metadata.get(key, (natural[type(value)],))[0] if kind is None else kind, value)

    def drop_keys(self, *keys: str) -> None:
        """Remove keys, which need not be there."""
        for key in keys:
            self.metadata.pop(key.replace("{arch}", self.architecture), None)

    def drop_tensors(self, unwanted: Callable[[str], bool]) -> list[str]:
        """Remove the tensors of these names; the names."""
        gone = [name for name in self.tensors if unwanted(name)]
        for name in gone:
            del self.tensors[name]
        return gone

    def write(self, path: Path) -> Path:
        """Write one file."""
        return _write(path, self.metadata, self.tensors)

    def write_with_gguf_py(self, path: Path) -> Path:
        """Write one file with gguf-py's own writer."""
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, (kind, value) in self.metadata.items():
            if key != "general.architecture":  # the writer has it already
                content, sub_kind = (value.items, value.item_type) if isinstance(value, gb.Array) else (value, None)
                item = None if sub_kind is None else gguf.GGUFValueType(sub_kind)
                writer.add_key_value(key, content, gguf.GGUFValueType(kind), item)
        for name, t in self.tensors.items():
            values = np.frombuffer(t.data, dtype=np.float32 if t.kind == gguf.GGMLQuantizationType.F32 else np.uint8)
            writer.add_tensor(name, values.reshape(*t.shape[:-1], -1), raw_dtype=t.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def write_splits(self, folder: Path, parts: Sequence[Sequence[str]], stem: str = "m") -> Path:
        """Write a split set whose files hold these tensors; the first file. Only the first has the metadata."""
        assert sorted(name for part in parts for name in part) == sorted(self.tensors)
        for index, part in enumerate(parts):
            keys = {
                "split.no": (gb.UINT16, index),
                "split.count": (gb.UINT16, len(parts)),
                "split.tensors.count": (gb.INT32, len(self.tensors)),
            }
            path = folder / f"{stem}-{index + 1:05d}-of-{len(parts):05d}.gguf"
            _write(path, {**(self.metadata if index == 0 else {}), **keys}, {name: self.tensors[name] for name in part})
        return folder / f"{stem}-00001-of-{len(parts):05d}.gguf"


def _write(path: Path, metadata: dict[str, tuple[int, Any]], tensors: dict[str, Stored]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = [TensorSpec(name, tuple(reversed(t.shape)), int(t.kind), t.data) for name, t in tensors.items()]
    path.write_bytes(gb.build([(key, kind, value) for key, (kind, value) in metadata.items()], specs))
    return path


def read(path: Path) -> Edited:
    """Read a whole file (not a split set)."""
    reader = gguf.GGUFReader(path)
    metadata = {name: _value(entry) for name, entry in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {
        t.name: Stored(t.tensor_type, tuple(int(n) for n in reversed(t.shape)), bytes(t.data.tobytes()))
        for t in reader.tensors
    }
    return Edited(metadata, tensors)


def _value(entry: Any) -> tuple[int, Any]:
    kind, content = int(entry.types[0]), entry.contents()
    return kind, gb.Array(int(entry.types[-1]), content) if kind == gb.ARRAY else content
