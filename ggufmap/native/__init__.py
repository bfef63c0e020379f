"""Decoders in C: their source, and the machine's C compiler to build them."""

from ggufmap.native.build import Native, native

__all__ = ["Native", "native"]
