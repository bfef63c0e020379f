"""A Plan for people and for programs."""
