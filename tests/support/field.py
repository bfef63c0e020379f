"""The field: model classes that vLLM's text-generation registry and llama.cpp's converter have in common.

Both lists are read from the packages' sources, nothing is imported.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support import assets

REASONS: Mapping[str, str] = {
    "DeciLMForCausalLM": "vLLM reads block_configs as objects of the repository's own config class (remote code)",
    "NemotronHPuzzleForCausalLM": "block sizes come from the repository's get_nemotron_h_config_for_layer; without it "
    "vLLM says: model type `nemotron_h_puzzle` but Transformers does not recognize this architecture",
    "Qwen4ExpForCausalLM": "no rows yet: its n-gram embedding is one table, with hash constants in header lists",
}
"""Classes of the field without a case, with the reason."""


@dataclass(frozen=True)
class Member:
    """One model class of the field: what vLLM runs for the name, and the converter's class that writes it."""

    name: str
    vllm: tuple[str, str]
    converter: str


def members() -> list[Member]:
    """The field, by name."""
    ours, theirs = vllm_classes(), converter_classes()
    return [Member(name, ours[name], theirs[name]) for name in sorted(set(ours) & set(theirs))]


def coverage(covered: Iterable[str]) -> dict[str, str]:
    """For each class of the field: "covered", "covered as NAME" (same vLLM class, same converter class), or ""."""
    names = set(covered)
    found: dict[str, str] = {}
    field = members()
    for member in field:
        if member.name in names:
            found[member.name] = "covered"
            continue
        alike = (m.name for m in field if m.name in names and (m.vllm, m.converter) == (member.vllm, member.converter))
        twin = next(alike, None)
        found[member.name] = "" if twin is None else f"covered as {twin}"
    return found


@cache
def vllm_classes() -> dict[str, tuple[str, str]]:
    """vLLM's `_TEXT_GENERATION_MODELS`: class name -> (module, class that runs it)."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None, "vLLM is not installed"
    source = Path(spec.origin).parent / "model_executor" / "models" / "registry.py"
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_TEXT_GENERATION_MODELS":
            assert isinstance(node.value, ast.Dict)
            entries = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): ast.literal_eval(value) for key, value in entries if key is not None}
    raise AssertionError(f"{source} has no _TEXT_GENERATION_MODELS")


@cache
def converter_classes() -> dict[str, str]:
    """Names that the converter registers for text models -> the converter's class."""
    found: dict[str, str] = {}
    for file in sorted((assets.llama_cpp_dir() / "conversion").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ClassDef) or any("Mmproj" in ast.unparse(base) for base in node.bases):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".register"):
                    names = (a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
                    found.update(dict.fromkeys(names, node.name))
    return found
