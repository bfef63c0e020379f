"""GGUF metadata to the files that stand beside weights in a model directory."""
