"""From stored bytes to checkpoint tensors, with bounded memory. Needs torch."""

from ggufmap.stream.lazy import Settling
from ggufmap.stream.stream import Lazy, check_streamable, stream
from ggufmap.stream.workers import Budget, Workers

__all__ = ["Budget", "Lazy", "Settling", "Workers", "check_streamable", "stream"]
