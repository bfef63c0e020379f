"""Doctor: what this environment, this machine and this model are, and what stands in the way of serving."""
