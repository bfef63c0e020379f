"""From stored bytes to checkpoint tensors, with bounded memory. Needs torch."""

from ggufmap.stream.lazy import Settling
from ggufmap.stream.pages import HugePages
from ggufmap.stream.stream import Lazy, check_streamable, stream
from ggufmap.stream.workers import Budget, Workers

__all__ = ["Budget", "HugePages", "Lazy", "Settling", "Workers", "check_streamable", "stream"]
