"""A tensor of a checkpoint: where its bytes are and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from ggufmap.checkpoint.ggml_types import GgmlType


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
