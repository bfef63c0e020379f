"""Runs vLLM engines of models with a vision tower in this process: `vision_worker.py REQUEST.json ANSWER.json`.

The request is {"jobs": [...]}, a job {"model", "load_format", "prompts", "max_tokens", "dtype"} and perhaps "image":
{"prompt", "seeds"}, a text with the mark of an image, and the seeds of the images to show in its place. The result is
{"tokens": [...], "images": [{"tokens", "logprobs"}, ...]}; log-probabilities are those of the whole prompt.
It is no module of the tests: vLLM keeps process-wide state that pytest's process must not have.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import vllm_worker
from in_turn import clean_up, collect_at_the_end


def image(seed: int) -> Any:
    """A picture of noise."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (64, 80, 3), dtype=np.uint8))


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, generate greedily from tokens and from images, take the engine down."""
    from vllm import LLM, SamplingParams

    shown = job.get("image")
    llm = LLM(
        job["model"],
        load_format=job["load_format"],
        dtype=job["dtype"],
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        max_model_len=256,
        max_num_seqs=4,
        limit_mm_per_prompt={"image": int(shown is not None), "video": 0},
    )
    sampling = SamplingParams(max_tokens=job["max_tokens"], temperature=0.0, detokenize=False, ignore_eos=True)
    texts = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], sampling, use_tqdm=False)
    result: dict[str, Any] = {"tokens": [list(o.outputs[0].token_ids) for o in texts], "images": []}
    if shown is not None:
        sampling.prompt_logprobs = 1
        for seed in shown["seeds"]:
            prompt = {"prompt": shown["prompt"], "multi_modal_data": {"image": image(seed)}}
            (output,) = llm.generate([prompt], sampling, use_tqdm=False)
            steps = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            result["images"].append(
                {
                    "prompt": list(output.prompt_token_ids),
                    "tokens": list(output.outputs[0].token_ids),
                    "logprobs": [step[token].logprob for token, step in steps],
                }
            )
    del llm, texts
    clean_up()
    return result


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    collect_at_the_end()
    vllm_worker.load_plugins()
    from ggufmap.target import compat

    compat.stand_in_for_torchvision()
    compat.look_at_models_here()
    Path(sys.argv[2]).write_text(json.dumps({"results": [run_job(job) for job in request["jobs"]]}))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
