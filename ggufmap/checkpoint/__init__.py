"""GGUF files: header, metadata, splits, tensor table and raw bytes."""

from ggufmap.checkpoint.checkpoint import Checkpoint, Tensor, open_checkpoint
from ggufmap.checkpoint.metadata import Metadata

__all__ = ["Checkpoint", "Metadata", "Tensor", "open_checkpoint"]
