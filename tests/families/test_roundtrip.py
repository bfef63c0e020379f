"""GLM and DeepSeek: checkpoint -> llama.cpp's own converter -> ggufmap gives trunk and draft back, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from families.tracing import Tracer
from safetensors.torch import load_file
from support import gguf_edit, tiny_moe
from support.converter import TinyFactory
from support.tiny_models import Dtype, TinyModel

from ggufmap.archs import find_architecture
from ggufmap.checkpoint import open_checkpoint
from ggufmap.mapping import Plan, Role, resolve
from ggufmap.mapping.plan import Assignment
from ggufmap.modeldir.config import config_from_header
from ggufmap.serving.preflight import preflight
from ggufmap.stream import stream
from ggufmap.target import client

NAMES = tiny_moe.FAMILIES
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load(path: Path, dtype: torch.dtype) -> tuple[Plan, dict[str, torch.Tensor]]:
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(path)))
        pairs = list(stream(plan, checkpoint, dtype))
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names)
    return plan, dict(pairs)


def original_tensors(model: TinyModel) -> dict[str, torch.Tensor]:
    """The checkpoint as vLLM's text-only class names and shapes it."""
    found = {}
    for name, tensor in load_file(model.folder / "model.safetensors").items():
        # GLM-5.3-Flash's repository has a vision tower beside the language model; ours is the language model.
        # vLLM's A_log is (1, 1, heads, 1) as in the checkpoint and takes a flat one too, as the trace shows.
        found[name.replace("model.language_model.", "model.")] = tensor.flatten() if "A_log" in name else tensor
    return found


def is_draft(name: str, model: TinyModel) -> bool:
    return any(name.startswith(f"model.layers.{bid}.") for bid in tiny_moe.SPECS[model.name].draft_blocks)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_comes_back(tiny: TinyFactory, name: str, dtype: Dtype) -> None:
    model, path = tiny(name, dtype)
    original = original_tensors(model)
    plan, found = load(path, TORCH[dtype])
    assert plan.ok, plan.problems()
    assert not plan.skipped
    assert found.keys() == original.keys()
    for tensor, expected in original.items():
        assert found[tensor].shape == expected.shape, tensor
        bits = BITS[expected.dtype]
        assert torch.equal(found[tensor].to(expected.dtype).view(bits), expected.view(bits)), tensor
        # What is stored more precisely than it was has the same value.
        assert torch.equal(found[tensor].double(), expected.double()), tensor


@pytest.mark.parametrize("name", NAMES)
def test_the_mtp_block_and_nothing_else_is_the_draft(tiny: TinyFactory, name: str) -> None:
    model, path = tiny(name)
    plan, _ = load(path, torch.float32)
    routed = {name: a.role for a in plan.assignments for name in a.checkpoint}
    assert routed == {name: Role.DRAFT if is_draft(name, model) else Role.TARGET for name in original_tensors(model)}
    assert plan.model.draft_blocks == len(tiny_moe.SPECS[name].draft_blocks)


# What vLLM's CPU build runs these with: target, draft.
VLLM_CLASSES = {
    "glm45": ("Glm4MoeForCausalLM", "Glm4MoeMTP"),
    "glm46": ("Glm4MoeForCausalLM", "Glm4MoeMTP"),
    "glm47_flash": ("Glm4MoeLiteForCausalLM", "Glm4MoeLiteMTP"),
    "glm5": ("GlmMoeDsaForCausalLM", "DeepSeekMTP"),
    "glm52": ("GlmMoeDsaForCausalLM", "DeepSeekMTP"),
    "deepseek_v2": ("DeepseekV2ForCausalLM", ""),
    "deepseek_v2_lite": ("DeepseekV2ForCausalLM", ""),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepSeekMTP"),
    "deepseek_v32": ("DeepseekV3ForCausalLM", "DeepSeekMTP"),  # DeepseekV32ForCausalLM by another name
    "glm53_flash": ("Glm5NextForCausalLM", "Glm5NextMTP"),
}


@pytest.mark.parametrize("name", NAMES)
def test_vllm_takes_every_tensor_and_misses_none(tiny: TinyFactory, tracer: Tracer, name: str) -> None:
    plan = tracer(tiny(name)[1]).plan
    assert plan.ok, plan.problems()
    assert plan.trace is not None
    classes = (plan.trace.target.class_name, "" if plan.trace.draft is None else plan.trace.draft.class_name)
    assert classes == VLLM_CLASSES[name]
    for role in Role:
        names = [name for a in plan.assignments if a.role is role for name in a.checkpoint]
        found = plan.trace.model(role)
        if found is None:
            assert not names
            continue
        assert found.uses.keys() == set(names)
        assert all(parameter.complete for parameter in found.parameters.values())
    own_head = tiny_moe.SPECS[name].own_head
    if plan.trace.draft is not None:
        deferred = {module.rpartition(".")[2]: size for module, size in plan.trace.draft.deferred.items()}
        size = tiny_moe.SPECS[name].text["vocab_size"] * tiny_moe.HIDDEN * 2  # traced as bfloat16
        # GLM-5.3's draft class never has a head of its own, so none is there to be deferred.
        never = {"head"} if name == "glm53_flash" else set()
        assert deferred == ({} if own_head else dict.fromkeys({"embed_tokens", "head"} - never, size))


@pytest.mark.parametrize("question", ["trace_with_amx", "trace_without_amx"])
@pytest.mark.parametrize("name", ["deepseek_v3", "glm53_flash"])
def test_what_fits_does_not_depend_on_the_processor(
    tiny: TinyFactory, tracer: Tracer, monkeypatch: pytest.MonkeyPatch, name: str, question: str
) -> None:
    """vLLM configures MLA by whether there is AMX; for a hybrid model its defaults contradict themselves without."""
    monkeypatch.setattr(client, "_ask", lambda request, _: tracer.ask(question, request))
    found = preflight(tiny(name)[1])
    found.checkpoint.close()
    assert found.plan.ok, found.plan.problems()
    assert found.plan.trace is not None
    assert found.plan.trace.target.class_name == VLLM_CLASSES[name][0]
    assert all(parameter.complete for parameter in found.plan.trace.target.parameters.values())


def reassembled(assignment: Assignment, file: gguf_edit.Edited, heads: int) -> list[npt.NDArray[np.float32]]:
    """An assignment's checkpoint tensors from what gguf-py decodes, by plain numpy."""
    values = [file.tensors[name].values for name in assignment.tensors]
    match assignment.transform.name:
        case "mla_kv_b":
            k_b, v_b = values
            rank = v_b.shape[2]
            per_head = [np.concatenate((k_b[head].T, v_b[head])) for head in range(heads)]
            return [np.concatenate(per_head).reshape(-1, rank)]
        case "experts":
            return list(values[0])
        case "a_log":
            return [np.log(-values[0].astype(np.float64)).astype(np.float32)]
        case "conv_channels":
            return [values[0].reshape(values[0].shape[1], 1, -1)]
    return values


@pytest.mark.parametrize("name", NAMES)
def test_quantised_tensors_are_what_gguf_py_makes_of_them(tiny: TinyFactory, name: str) -> None:
    model, path = tiny(name, outtype="q8_0")
    original = original_tensors(model)
    plan, found = load(path, torch.float32)
    assert plan.ok, plan.problems()
    file = gguf_edit.read(path)
    assert found.keys() == original.keys()
    kinds: dict[str, int] = {}
    for assignment in plan.assignments:
        kind = file.tensors[assignment.tensors[0]].kind.name
        kinds[f"{kind} {assignment.transform.name}"] = kinds.get(f"{kind} {assignment.transform.name}", 0) + 1
        expected = reassembled(assignment, file, tiny_moe.SPECS[name].text["num_attention_heads"])
        for tensor, values in zip(assignment.checkpoint, expected, strict=True):
            assert np.array_equal(found[tensor].numpy(), values), tensor
            # Q8_0 rounds to the nearest of 255 steps between the largest values of a block, its step to float16.
            largest = float(original[tensor].abs().max())
            assert (found[tensor] - original[tensor]).abs().max() <= largest * (0.5 / 127 + 2**-10), tensor
    assert kinds["Q8_0 experts"] == 3 * (plan.model.blocks - tiny_moe.SPECS[name].text["first_k_dense_replace"])
    if "kv_lora_rank" in tiny_moe.SPECS[name].text:
        linear = tiny_moe.SPECS[name].text.get("layer_types", []).count("linear_attention")
        assert kinds["Q8_0 mla_kv_b"] == plan.model.blocks - linear


# Keys in which the made config may differ from the original, and why.
DIFFERENT = {
    "dtype": "the file has a type per tensor; vLLM is told bfloat16 as long as nobody says otherwise",
    "_name_or_path": "the folder",
    "transformers_version": "who wrote it",
    "bos_token_id": "GLM's config has none or the class's default; the converter writes [gMASK], never used as such",
    "architectures": "GLM-5.3's text model without the vision tower is a class of its own",
}
# Keys that only the made config has; the first two are what the class of the original assumes in their absence.
ADDED = {
    "scoring_func": "vLLM's Glm4MoE and Glm4MoeLite know that they are sigmoid",
    "moe_layer_freq": "1: every block after the leading dense ones",
    "index_topk_pattern": "the same schedule as indexer_types, in the letters that vLLM reads first",
}
# Keys that only the original has.
LEFT_OUT = {
    "index_topk_freq": "said, block by block, by index_topk_pattern",
    "index_skip_topk_offset": "as index_topk_freq",
}


def through_transformers(folder: Path) -> dict[str, Any]:
    """config.json as the class of its model type completes it, the text model's keys."""
    from transformers import AutoConfig

    values: dict[str, Any] = AutoConfig.from_pretrained(folder).to_dict()
    text: dict[str, Any] = values.get("text_config", values)
    text.get("rope_parameters", {}).pop("type", None)  # the old name of rope_type, kept beside the new one
    return text


@pytest.mark.parametrize("name", NAMES)
def test_every_config_key_comes_back(tiny: TinyFactory, tmp_path: Path, name: str) -> None:
    model, path = tiny(name)
    with open_checkpoint(path) as checkpoint:
        made = config_from_header(checkpoint, find_architecture(checkpoint.architecture, str(path)))
    (tmp_path / "config.json").write_text(json.dumps(dict(made.values)))
    theirs, ours = through_transformers(model.folder), through_transformers(tmp_path)
    assert {k: (theirs.get(k), ours[k]) for k in ours.keys() - theirs.keys() - ADDED.keys() - DIFFERENT.keys()} == {}
    assert theirs.keys() - ours.keys() <= LEFT_OUT.keys() | DIFFERENT.keys()
    shared = theirs.keys() & ours.keys() - DIFFERENT.keys()
    assert {key: (theirs[key], ours[key]) for key in shared if theirs[key] != ours[key]} == {}
    assert made.values["model_type"] == json.loads((model.folder / "config.json").read_text())["model_type"]
    # And as written, before a class puts its defaults in: every key of the original that is not named above.
    raw = tiny_moe.SPECS[name].text
    said = raw.keys() - DIFFERENT.keys() - LEFT_OUT.keys() - {"rope_theta", "rope_scaling"}
    assert {key: (raw[key], made.text.get(key)) for key in said if made.text.get(key) != raw[key]} == {}
