"""Run GGUF models in vLLM: prove the mapping, then stream the weights."""

__version__ = "0.1.0"
