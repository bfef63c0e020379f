"""From stored bytes to checkpoint tensors, with bounded memory. Needs torch."""

from ggufmap.stream.stream import check_streamable, stream

__all__ = ["check_streamable", "stream"]
