"""GGUF files: header, metadata, splits, tensor table and raw bytes."""

from ggufmap.checkpoint.checkpoint import Checkpoint, open_checkpoint
from ggufmap.checkpoint.metadata import Metadata
from ggufmap.checkpoint.tensor import Tensor

__all__ = ["Checkpoint", "Metadata", "Tensor", "open_checkpoint"]
