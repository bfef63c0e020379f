"""llama.cpp itself on a text: `llama_cpp_worker.py REQUEST.json ANSWER.json`.

The request is {"gguf", "text", "positions"}; the answer {"ids", "top", "top_logprobs"}: the text's tokens, and the
likeliest next token after each of the first `positions`. The server answers for the end of a prompt only, so each
position is a request of its own; it keeps the tokens before, and each costs one step.

Now and then the server's start waits for itself for ever (xllamacpp 2026.10.11549): SIGALRM then ends the process, and
`harness.run_worker` tries again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp

HANGS_S = 120


def start(gguf: str) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_ctx = 1024
    params.n_parallel = 1
    params.warmup = False
    # Keep every layer's cache whole: with the sliding window's own, llama.cpp computes some tokens again each time.
    params.swa_full = True
    params.verbosity = 0
    # One thread: several wait for each other in busy loops, which takes for ever when the cores are taken.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    signal.alarm(HANGS_S)
    server = xllamacpp.Server(params)
    signal.alarm(0)
    return server


def post(server: xllamacpp.Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    server = start(request["gguf"])
    ids = post(server, "/tokenize", {"content": request["text"], "add_special": True})["tokens"]
    best = []
    for end in range(1, request["positions"] + 1):
        body = {"prompt": ids[:end], "n_predict": 1, "n_probs": 1, "temperature": 0.0, "cache_prompt": True}
        best.append(post(server, "/completion", body)["completion_probabilities"][0])
    answer = {"ids": ids, "top": [x["id"] for x in best], "top_logprobs": [x["logprob"] for x in best]}
    Path(sys.argv[2]).write_text(json.dumps(answer))
    os._exit(0)  # its threads have nothing more to say


if __name__ == "__main__":
    main()
