"""Which layer of the draft a checkpoint name belongs to: our fallback says what vLLM's own function says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from families.tracing import Tracer
from support import tiny_moe

from ggufmap.target.compat import spec_layer_fallback

ODD = [
    "",
    "model",
    "layers",
    "layers.3",
    "layers.3.",
    "layers.3.x",
    "layers.33.x",
    "layers.03.x",
    "layers.-3.x",
    "layers.3x.y",
    "layersX3.y",
    "model.layers.3",
    "model.layers.3.",
    "model.layers.30.mlp.gate.weight",
    "model.layersx3.mlp",
    "xmodel.layers.3.mlp.gate.weight",
    "model.model.layers.3.mlp.gate.weight",
    "model.language_model.layers.3.mlp.gate.weight",
    "language_model.layers.3.mlp.gate.weight",
    "language_model.model.layers.3.mlp.gate.weight",
    "modelXlanguage_model.layers.3.y",
    "model.visual.layers.3.mlp",
    "model.mtp.layers.3.mlp",
    "mtp.layers.3.eh_proj.weight",
    "model.layers.3\n.x",
    "\nmodel.layers.3.x",
    "model.embed_tokens.weight",
    "lm_head.weight",
]
CONFIGS: list[dict[str, Any]] = [
    {"num_hidden_layers": 3, "num_nextn_predict_layers": 1},
    {"num_hidden_layers": 3, "num_nextn_predict_layers": 2},
    {"num_hidden_layers": 3, "num_nextn_predict_layers": 0},
    {"num_hidden_layers": 3, "num_nextn_predict_layers": None},
    {"num_hidden_layers": 3},
    {"num_hidden_layers": 8, "num_nextn_predict_layers": 1},
    {"num_hidden_layers": 30, "num_nextn_predict_layers": 4},
    {"num_hidden_layers": 0, "num_nextn_predict_layers": 1},
    {"num_hidden_layers": 4, "num_nextn_predict_layers": 1},
]


@pytest.fixture(scope="module")
def names() -> list[str]:
    """Every name of every family, with and without the prefix of a multimodal repository, and odd ones."""
    found = {name for model in tiny_moe.NAMES for name in tiny_moe.shapes(model)}
    found |= {name.replace("model.language_model.", "model.") for name in found}
    return [*sorted(found), *ODD]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: ",".join(f"{v}" for v in c.values()))
def test_the_fallback_equals_vllm_s_function(tracer: Tracer, names: list[str], config: dict[str, Any]) -> None:
    theirs = tracer.ask("spec_layers", {"config": config, "names": names})
    ours = [spec_layer_fallback(SimpleNamespace(**config), name) for name in names]
    assert {name: (a, b) for name, a, b in zip(names, ours, theirs, strict=True) if a != b} == {}
    first, count = config["num_hidden_layers"], config.get("num_nextn_predict_layers") or 0
    found = {layer for layer in theirs if layer is not None}
    assert found <= set(range(first, first + count))
    assert bool(found) == bool(count)  # every config names layers that some name has
