"""vLLM's own rendering of chat templates, without an engine. A process of its own: vLLM keeps state.

Arguments: pairs of a model directory and a template, "" for the directory's own. Prints one JSON line for each: the
prompt, or the kind and text of the error.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """See the module."""
    from vllm.config import ModelConfig
    from vllm.renderers.chat_utils import load_chat_template
    from vllm.renderers.hf import safe_apply_chat_template
    from vllm.tokenizers import get_tokenizer

    for folder, template in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        config = ModelConfig(model=folder, tokenizer=folder, dtype="float32")
        tokenizer = get_tokenizer(folder)
        try:
            given = load_chat_template(template or None)  # what the server does with --chat-template
            messages = [{"role": "user", "content": "hello"}]
            answer = {
                "prompt": safe_apply_chat_template(config, tokenizer, messages, chat_template=given, tokenize=False)
            }
        except Exception as e:
            answer = {"error": type(e).__name__, "text": str(e), "cause": type(e.__cause__).__name__}
        print("answer:" + json.dumps(answer))


if __name__ == "__main__":
    main()
