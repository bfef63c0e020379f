"""What the real vLLM model does with checkpoint tensors. vLLM is imported inside functions only."""
