"""`vllm_worker.py` with the kernels of packed layers on the CPU: `packed_worker.py REQUEST.json ANSWER.json`."""

from __future__ import annotations

import vllm_worker
from support import packed_ops

if __name__ == "__main__":
    packed_ops.install()
    vllm_worker.main()
