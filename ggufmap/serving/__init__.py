"""vLLM: the load format, the gate before it, and the `vllm serve` wrapper."""
