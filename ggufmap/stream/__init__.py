"""From stored bytes to checkpoint tensors, with bounded memory. Needs torch."""

from ggufmap.stream.stream import Lazy, check_streamable, stream
from ggufmap.stream.workers import Budget

__all__ = ["Budget", "Lazy", "check_streamable", "stream"]
