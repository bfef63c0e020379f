"""Models that are not local files: `hf://`, `https://` and `s3://` references, read by ranges of bytes."""

from ggufmap.remote.locate import fetch, locate, open_model, to_download

__all__ = ["fetch", "locate", "open_model", "to_download"]
