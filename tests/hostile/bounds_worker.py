"""Opens GGUF files in a process with limits and says, per file, the memory and the CPU seconds that it took."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import GgufmapError

MEMORY_FLOOR = 64 << 20
MEMORY_FACTOR = 4
SECONDS = 2.0
PER_BYTES = 100_000_000


def status(key: str) -> int:
    """A number of bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def measure(path: Path) -> dict[str, object]:
    """Open `path`; peak memory above the start, CPU seconds, and the error's message if there was one."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, started = status("VmHWM"), time.process_time()
    message = None
    try:
        open_checkpoint(path, check=False).close()
    except GgufmapError as e:
        message = e.message
    return {"memory": status("VmHWM") - before, "seconds": time.process_time() - started, "message": message}


def main() -> None:
    """Arguments: a limit on the memory above the start in bytes, one on the CPU seconds, then files."""
    space, seconds, *files = sys.argv[1:]
    limit = status("VmSize") + int(space)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    print(json.dumps([measure(Path(file)) for file in files]))


if __name__ == "__main__":
    main()
