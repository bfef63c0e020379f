"""Runs llama.cpp's own convert_hf_to_gguf.py, many times: `convert_runner.py CONVERTER_DIR`.

Each line of standard input is a job, `{"pre": ..., "arguments": [...], "log": ...}`; each line of output is
the exit status of the one before. The jobs run one after the other, each in a fork of this process: what
takes seconds is importing torch and transformers, and that happens once here.

Two things in the converter are replaced, and nothing else. `get_vocab_base_pre` names a checkpoint's
pre-tokenizer by looking up a hash of what its tokenizer makes of a fixed text, and refuses hashes it does
not know. A tokenizer trained for a test cannot have a known hash, so `pre` is returned in its place. And
DeepSeek V3.2's `set_vocab` asserts `add_bos_token`, which transformers 5 forgets when it reads a
tokenizer.json, whatever tokenizer_config.json says: the assertion is left out.

This is no module of the tests: the converter brings its own gguf-py, newer than the installed one, and two
`gguf` packages do not fit in one process.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any


def run(converter: Path, job: dict[str, Any]) -> None:
    """In the fork: send all output to the log, patch, and start the converter as if by hand."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from conversion.base import TextModel
    from conversion.deepseek import DeepseekV32Model

    if Path(job["arguments"][0]).name.endswith("-raw"):
        # A model type that transformers does not know: the tokenizer would have the base class read the config, which
        # refuses what it does not understand.
        from transformers import PreTrainedConfig

        PreTrainedConfig.from_pretrained = classmethod(lambda cls, *_, **__: cls())
    TextModel.get_vocab_base_pre = lambda self, tokenizer: job["pre"]
    DeepseekV32Model.set_vocab = lambda self: self._set_vocab_gpt2()
    script = str(converter / "convert_hf_to_gguf.py")
    sys.argv = [script, *job["arguments"]]
    runpy.run_path(script, run_name="__main__")


def fork(converter: Path, job: dict[str, Any]) -> int:
    """Run the job in a child process; its exit status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        run(converter, job)
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # never back into the parent's loop


def main() -> None:
    """Import what every job needs, then serve jobs until standard input ends."""
    converter = Path(sys.argv[1])
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    import gguf
    import sentencepiece  # noqa: F401
    from conversion import base  # noqa: F401
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: F401

    if not Path(gguf.__file__).is_relative_to(converter):
        sys.exit(f"the converter would use another gguf-py than its own: {gguf.__file__}")
    for line in sys.stdin:
        print(fork(converter, json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
