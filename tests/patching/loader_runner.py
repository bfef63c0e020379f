"""Stock GGUF loaders, asked from one process that imported vLLM: `loader_runner.py`. No module of the tests.

Each line of standard input is `{"call": NAME, "request": FILE, "answer": FILE, "log": FILE}` with the name of a
function below, each line of output an exit status. Each call has a fork of its own, so that each sees its own copy of a
package: `site`, a folder like site-packages. What is of an older vLLM runs on the installed vLLM's other modules.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Request = dict[str, Any]
Weights = Iterable[tuple[str, Any]]
_IN_TREE = (  # in the order of their imports
    "vllm.transformers_utils.gguf_utils",
    "vllm.model_executor.model_loader.weight_utils",
    "vllm.model_executor.model_loader.gguf_loader",
)


def loads(request: Request) -> list[Request]:
    """What the loader of `package` hands to a model for each of `models`, pairs of checkpoint folder and GGUF."""
    load = _plugin_loads if request["package"] == "vllm-gguf-plugin" else _in_tree_loads
    return [load({**request, "folder": folder, "gguf": gguf}) for folder, gguf in request["models"]]


def _plugin_loads(request: Request) -> Request:
    sys.path.insert(0, request["site"])
    from vllm_gguf_plugin.weights_adapter import get_weights_adapter

    config = _model_config(request)
    try:
        adapter = get_weights_adapter(config.hf_config)
        spec = adapter.prepare_loading(request["gguf"], config)
        return _compare(request, adapter.prepare_weights(config)) | {"dense": spec.unquantized_modules}
    except RuntimeError as e:
        return {"refuses": str(e)}


def _in_tree_loads(request: Request) -> Request:
    from vllm.config.load import LoadConfig

    loader = _in_tree(request["site"]).GGUFModelLoader(LoadConfig(load_format="gguf"))
    config = _model_config(request)
    got: list[tuple[str, Any]] = []
    try:
        loader.load_weights(SimpleNamespace(load_weights=got.extend), config)
        types = loader._get_gguf_weight_type(config, request["gguf"], loader._get_gguf_weights_map(config))
    except RuntimeError as e:
        return {"refuses": str(e)}
    dense = [name.removesuffix(".weight") for name, kind in types.items() if kind == "F32"]
    return _compare(request, got, stacked=True) | {"dense": dense}


def iterates(request: Request) -> list[list[list[tuple[str, str, int]]]]:
    """For the weight_utils modules `files`, and each of their iterators of GGUF files with the map `names`:
    (name, dtype, sum of the bytes) of each weight of `gguf`.
    """
    import torch

    def come(weights: Weights) -> list[tuple[str, str, int]]:
        return [(name, str(w.dtype), int(w.reshape(-1).view(torch.uint8).long().sum())) for name, w in weights]

    gguf, names = request["gguf"], request["names"]
    answer = []
    for file in request["files"]:
        module = _load("weight_utils_of_its_own", Path(file))
        answer.append([come(module.gguf_quant_weights_iterator(gguf, names))])
        if hasattr(module, "gguf_quant_weights_iterator_multi"):
            answer[-1].append(come(module.gguf_quant_weights_iterator_multi([gguf], names)))
    return answer


def draft_config(request: Request) -> Request:
    """GLM-5.3-Flash's draft as a vLLM's override makes it of the config class of Transformers, or why it cannot."""
    from transformers.models.glm5_next.configuration_glm5_next import Glm5NextConfig

    module = _load("vllm_config_speculative", Path(request["site"]) / "vllm/config/speculative.py")
    config = Glm5NextConfig(**request["config"])
    try:
        made = module.SpeculativeConfig.hf_config_override(config)
    except AttributeError as e:
        return {"refuses": str(e)}
    return {key: getattr(made, key, None) for key in ("architectures", "n_predict", "index_share_for_mtp_iteration")}


def _model_config(request: Request) -> Any:
    """As much of vLLM's ModelConfig as the loaders read; that of the draft is what vLLM's own override makes of it."""
    from transformers import AutoConfig
    from vllm.config.speculative import SpeculativeConfig

    config = AutoConfig.from_pretrained(request["folder"])
    if request.get("draft"):
        config = SpeculativeConfig.hf_config_override(config)
    gguf = request["gguf"]
    return SimpleNamespace(hf_config=config, trust_remote_code=False, model=gguf, model_weights=gguf, revision=None)


def _in_tree(site: str) -> ModuleType:
    """The loader of an older vLLM."""
    return [_load(name, Path(site, *name.split(".")).with_suffix(".py")) for name in _IN_TREE][-1]


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compare(request: Request, weights: Weights, *, stacked: bool = False) -> Request:
    """The names that came, and which of the checkpoint's tensors are equal to what came, to the bit."""
    import torch
    from safetensors.torch import load_file

    came = list(weights)
    found = dict(came)
    assert len(found) == len(came), "a name came twice"
    expected = load_file(Path(request["folder"]) / "model.safetensors")
    if stacked:  # vLLM's own loader leaves it to the layer to cut the stack
        experts: dict[str, list[Any]] = {}
        for name in [name for name in expected if ".experts." in name]:
            before, _, after = name.partition(".experts.")
            experts.setdefault(f"{before}.experts.0.{after.split('.', 1)[1]}", []).append(expected.pop(name))
        expected |= {name: torch.stack(parts) for name, parts in experts.items()}
    expected |= {name: torch.load(path) for name, path in request.get("instead", {}).items()}
    same = [name for name in expected if name in found and torch.equal(found[name], expected[name])]
    return {"names": sorted(found), "expected": sorted(expected), "same": sorted(same)}


def main() -> None:
    """Answer until standard input ends."""
    import safetensors.torch  # noqa: F401
    import transformers.models.glm4_moe.modeling_glm4_moe
    import transformers.models.glm_moe_dsa.modeling_glm_moe_dsa  # noqa: F401
    import vllm.config.speculative
    import vllm.model_executor.model_loader.base_loader
    import vllm.model_executor.models.utils  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if not child:
            job = json.loads(line)
            try:
                os.dup2(os.open(job["log"], os.O_WRONLY | os.O_CREAT), 2)
                answer = globals()[job["call"]](json.loads(Path(job["request"]).read_text()))
                Path(job["answer"]).write_text(json.dumps(answer))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


if __name__ == "__main__":
    main()
