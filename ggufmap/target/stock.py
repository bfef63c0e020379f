"""What the stock name map would have done: gguf-py's TensorNameMap over transformers' model, as GGUF loaders build it.

For comparison only. It runs in a process of its own, because building one architecture's TensorNameMap changes the next
one's (gguf 0.19.0 tensor_mapping.py updates a class-level dict). The manual rows that such loaders add for experts,
router biases and MLA's split kv_b (vllm-gguf-plugin weights_adapter/default.py and mla.py) are added here too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ggufmap.archs.base import JsonValue
from ggufmap.errors import MissingDependencyError
from ggufmap.mapping.plan import Plan, Role, StockMap

_TIMEOUT_S = 300
_MANUAL = ("experts", "mla_kv_b")
_ROUTER_BIAS = "e_score_correction_bias"


def stock_map(plan: Plan, config: Mapping[str, JsonValue]) -> StockMap:
    """Build the stock map for the plan's model and compare it with the file.

    Raises MissingDependencyError when transformers or gguf-py cannot (absent, or the family is unknown to them).
    """
    manual = {
        name: a.checkpoint[0]
        for a in plan.assignments
        if a.role is Role.TARGET and (a.transform.name in _MANUAL or a.checkpoint[0].endswith(_ROUTER_BIAS))
        for name in a.tensors
    }
    request = {"architecture": plan.model.architecture, "config": dict(config), "manual": manual}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ggufmap.target.stock"],
        input=json.dumps(request),
        env={"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", **os.environ},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise MissingDependencyError(
            f"the stock map cannot be built: {last[0]}", hint="Leave --stock out; the audit does not need it."
        )
    answer = json.loads(done.stdout)
    entries = answer["entries"]
    return StockMap(
        gguf=answer["gguf"],
        entries=len(entries),
        unmapped=tuple(name for name in plan.model.tensors if name not in entries),
        phantom=tuple(name for name in entries if name not in plan.model.tensors),
    )


def _build(request: dict[str, Any]) -> dict[str, str]:
    """GGUF tensor name -> checkpoint name, the stock way. A name without suffix keeps the dot that never matches."""
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = request["config"]
    text = config.get("text_config", config)
    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    if request["architecture"] not in architectures:
        raise SystemExit(f"gguf-py {_gguf_version()} does not know the architecture {request['architecture']}")
    names = gguf.get_tensor_name_map(architectures[request["architecture"]], text["num_hidden_layers"])
    hf_config = AutoConfig.for_model(**{k: v for k, v in config.items() if k != "architectures"})
    with torch.device("meta"):
        parameters = list(AutoModelForCausalLM.from_config(hf_config).state_dict())
    entries: dict[str, str] = dict(request["manual"])
    for parameter in parameters:
        base, suffix = parameter, ""
        if parameter.endswith((".weight", ".bias")):
            base, _, suffix = parameter.rpartition(".")
        found = names.get_name(base)
        if found is not None:
            entries[f"{found}.{suffix}"] = parameter
    return entries


def _gguf_version() -> str:
    from importlib.metadata import version

    return version("gguf")


def _main() -> None:
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    json.dump({"gguf": _gguf_version(), "entries": _build(request)}, answer)
    answer.close()


if __name__ == "__main__":
    _main()
