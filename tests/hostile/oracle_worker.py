"""What another reader makes of GGUF files: oracle_worker.py gguf-py|llama.cpp, then pairs of a stage and a file.

Each file is read in a fork of its own with limits on memory, CPU and time; prints a JSON list of one answer per file:
`read`, `refused` with the message, `crash` with the signal, `hang`, or `memory`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

MEMORY = 1 << 30
SECONDS = 5
WALL = 120
_ERROR = 4  # GGML_LOG_LEVEL_ERROR
Answer = dict[str, str]


class RefusedError(Exception):
    """The reader said no."""


def gguf_py() -> Callable[[str, str], None]:
    """gguf-py's reader, opening the file as its own scripts do."""
    import gguf

    def read(stage: str, path: str) -> None:
        gguf.GGUFReader(path)

    return read


class _InitParams(ctypes.Structure):
    """`gguf_init_params` of ggml/include/gguf.h."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.POINTER(ctypes.c_void_p)))


def llama_cpp() -> Callable[[str, str], None]:
    """llama.cpp: `gguf_init_from_file` with the data, as in its tests; later stages load vocabulary or model."""
    from modeldir.llama_cpp_vocab import LOG, VOCAB_ONLY, library

    lib = library()
    lib.gguf_init_from_file.restype = ctypes.c_void_p
    lib.gguf_init_from_file.argtypes = (ctypes.c_char_p, _InitParams)
    said: list[str] = []
    log = LOG(lambda level, text, data: said.append(text.decode(errors="replace")) if level == _ERROR else None)
    lib.llama_log_set(ctypes.cast(log, ctypes.c_void_p), None)
    lib.llama_backend_init()

    def read(stage: str, path: str) -> None:
        log  # noqa: B018 - must live as long as the library calls it
        said.clear()
        if stage == "open":
            context = ctypes.c_void_p()
            found = lib.gguf_init_from_file(path.encode(), _InitParams(False, ctypes.pointer(context)))
        else:
            params = lib.llama_model_default_params()
            params.raw[VOCAB_ONLY] = stage == "tokenizer"
            found = lib.llama_model_load_from_file(path.encode(), params)
        if not found:
            raise RefusedError(said[0].strip() if said else "no reason")

    return read


READERS = {"gguf-py": gguf_py, "llama.cpp": llama_cpp}


def asked(read: Callable[[str, str], None], stage: str, path: str) -> Answer:
    """The answer of one fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_child(read, stage, path, writing)
    os.close(writing)
    text, until = b"", time.monotonic() + WALL
    while time.monotonic() < until:
        ready, _, _ = select.select([reading], [], [], 1.0)
        block = os.read(reading, 65536) if ready else b"-"
        if not block:
            break
        text += block if ready else b""
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return {"outcome": "hang", "text": f"more than {SECONDS} s"}
        return {"outcome": "crash", "text": signal.Signals(number).name}
    found: Answer = json.loads(text)
    return found


def _in_child(read: Callable[[str, str], None], stage: str, path: str, pipe: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + MEMORY
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for stream in (1, 2):  # ggml's abort prints what a debugger says
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    answer = {"outcome": "read", "text": ""}
    try:
        read(stage, path)
    except RefusedError as e:
        answer = {"outcome": "refused", "text": str(e)}
    except MemoryError:
        answer = {"outcome": "memory", "text": f"more than {MEMORY >> 30} GiB"}
    except BaseException as e:
        answer = {"outcome": "refused", "text": f"{type(e).__name__}: {e}"}
    os.write(pipe, json.dumps({key: value[:300] for key, value in answer.items()}).encode())
    os._exit(0)


def main() -> None:
    """See the module."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    name, *pairs = sys.argv[1:]
    read = READERS[name]()
    print(json.dumps([asked(read, stage, path) for stage, path in zip(pairs[::2], pairs[1::2], strict=True)]))


if __name__ == "__main__":
    main()
