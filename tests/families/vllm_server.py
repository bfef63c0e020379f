"""Answers many questions about vLLM from one process: `vllm_server.py`. No module of the tests.

Each line of standard input is `{"call": NAME, "request": FILE, "answer": FILE, "log": FILE}`; each line of output is an
exit status. `trace` is what `ggufmap.target.worker` does in a process of its own; other names are functions of
`vllm_questions.py`. Each is called in a fork of this process: what takes long is importing vLLM, and that happens once.
An argument names the GPU to simulate.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from ggufmap.target.devices import parse_device


def answer(job: dict[str, str]) -> None:
    """In the fork: put files in the place of the standard streams, and answer."""
    for stream, name, mode in ((0, "request", os.O_RDONLY), (1, "answer", os.O_WRONLY), (2, "log", os.O_WRONLY)):
        os.dup2(os.open(job[name], mode | (os.O_CREAT if mode else 0)), stream)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    if job["call"] == "trace":
        from ggufmap.target import worker

        worker.main()
    import vllm_questions  # beside this file

    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    if job["call"] in vllm_questions.LIKE_THE_WORKER:
        getattr(vllm_questions, job["call"])()
    os.dup2(2, 1)  # vLLM may say something
    json.dump(getattr(vllm_questions, job["call"])(json.load(sys.stdin)), out)
    out.close()
    os._exit(0)


def main() -> None:
    capability = parse_device(sys.argv[1]) if len(sys.argv) > 1 else None
    if capability is not None:  # before anything of vLLM remembers that there is no GPU
        from ggufmap.target import simulate

        simulate.enter(capability, 1)
    import vllm.engine.arg_utils
    import vllm.model_executor.models.glm4_moe  # noqa: F401

    import ggufmap.target.trace  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                answer(json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.__stdout__.write(f"{status}\n")
        sys.__stdout__.flush()


if __name__ == "__main__":
    main()
