"""From stored bytes to checkpoint tensors, with bounded memory. Needs torch."""

from ggufmap.stream.stream import Lazy, check_streamable, stream

__all__ = ["Lazy", "check_streamable", "stream"]
