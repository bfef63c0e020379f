"""The trace's worker with the plugin's kernels on the CPU: `python -m support.packed_worker`."""

from __future__ import annotations

from ggufmap.target import worker
from support import packed_ops

if __name__ == "__main__":
    packed_ops.install()
    worker.main()
