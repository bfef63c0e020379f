"""Row sets per `general.architecture`: a lazy table from the GGUF name to the family file that holds it."""

from __future__ import annotations

import difflib
import importlib

from ggufmap.archs.base import Architecture, Rule, Skip
from ggufmap.errors import UnknownArchitectureError, UnsupportedError

_TABLE: dict[str, tuple[str, str]] = {
    "afmoe": ("afmoe", "AFMOE"),
    "apertus": ("apertus", "APERTUS"),
    "arcee": ("llama", "ARCEE"),
    "bailingmoe": ("bailing", "BAILING_MOE"),
    "bailingmoe2": ("bailing", "BAILING_MOE2"),
    "bailingmoe3": ("bailing3", "BAILING_MOE3"),
    "bloom": ("bloom", "BLOOM"),
    "chatglm": ("glm4", "CHATGLM"),
    "cohere2": ("cohere", "COHERE2"),
    "cohere2moe": ("cohere", "COHERE2_MOE"),
    "command-r": ("cohere", "COMMAND_R"),
    "dbrx": ("dbrx", "DBRX"),
    "deepseek": ("deepseek1", "DEEPSEEK"),
    "deepseek2": ("deepseek", "DEEPSEEK2"),
    "deepseek32": ("deepseek", "DEEPSEEK32"),
    "deepseek4": ("deepseek4", "DEEPSEEK4"),
    "ernie4_5": ("ernie", "ERNIE4_5"),
    "ernie4_5-moe": ("ernie", "ERNIE4_5_MOE"),
    "exaone": ("exaone", "EXAONE"),
    "exaone-moe": ("exaone_moe", "EXAONE_MOE"),
    "exaone4": ("exaone", "EXAONE4"),
    "falcon": ("falcon", "FALCON"),
    "falcon-h1": ("falcon_h1", "FALCON_H1"),
    "gemma": ("gemma", "GEMMA"),
    "gemma2": ("gemma", "GEMMA2"),
    "gemma3": ("gemma", "GEMMA3"),
    "gemma3_text": ("gemma", "GEMMA3"),
    "gemma3n": ("gemma_n", "GEMMA3N"),
    "gemma4": ("gemma4", "GEMMA4"),
    "glm-dsa": ("glm", "GLM_DSA"),
    "glm4": ("glm4", "GLM4"),
    "glm4moe": ("glm", "GLM4_MOE"),
    "glm5-next": ("glm", "GLM5_NEXT"),
    "glm5next": ("glm", "GLM5_NEXT"),
    "gpt-oss": ("gpt_oss", "GPT_OSS"),
    "gpt2": ("gpt2", "GPT2"),
    "gptneox": ("gptneox", "GPTNEOX"),
    "granite": ("granite", "GRANITE"),
    "granite_swa": ("granite", "GRANITE_SWA"),
    "granitehybrid": ("granite", "GRANITE_HYBRID"),
    "granitemoe": ("granite", "GRANITE_MOE"),
    "hrm_text": ("hrm_text", "HRM_TEXT"),
    "hunyuan-dense": ("hunyuan", "HUNYUAN_DENSE"),
    "hy_v3": ("hunyuan_v3", "HY_V3"),
    "hy_v4": ("hunyuan_v4", "HY_V4"),
    "internlm2": ("internlm", "INTERNLM2"),
    "jamba": ("jamba", "JAMBA"),
    "kimi-linear": ("kimi", "KIMI_LINEAR"),
    "laguna": ("laguna", "LAGUNA"),
    "lfm2": ("lfm2", "LFM2"),
    "lfm2moe": ("lfm2", "LFM2_MOE"),
    "llama": ("llama", "LLAMA"),
    "llama4": ("llama4", "LLAMA4"),
    "mamba": ("mamba", "MAMBA"),
    "mamba2": ("mamba", "MAMBA2"),
    "mimo2": ("mimo", "MIMO2"),
    "minicpm": ("minicpm", "MINICPM"),
    "minicpm3": ("minicpm", "MINICPM3"),
    "minimax-m2": ("minimax", "MINIMAX_M2"),
    "minimax-m3": ("minimax", "MINIMAX_M3"),
    "mistral3": ("mistral3", "MISTRAL3"),
    "nemotron": ("nemotron", "NEMOTRON"),
    "nemotron_h": ("nemotron_h", "NEMOTRON_H"),
    "nemotron_h_moe": ("nemotron_h", "NEMOTRON_H_MOE"),
    "olmo": ("olmo", "OLMO"),
    "olmo2": ("olmo", "OLMO2"),
    "olmoe": ("olmo", "OLMOE"),
    "orion": ("orion", "ORION"),
    "pangu-embedded": ("pangu", "PANGU_EMBEDDED"),
    "phi2": ("phi", "PHI2"),
    "phi3": ("phi", "PHI3"),
    "phimoe": ("phi_moe", "PHI_MOE"),
    "plamo3": ("plamo", "PLAMO3"),
    "qwen2": ("qwen", "QWEN2"),
    "qwen2moe": ("qwen", "QWEN2_MOE"),
    "qwen2vl": ("qwen_vl", "QWEN2VL"),
    "qwen3": ("qwen", "QWEN3"),
    "qwen35": ("qwen_next", "QWEN35"),
    "qwen35moe": ("qwen_next", "QWEN35_MOE"),
    "qwen3moe": ("qwen", "QWEN3_MOE"),
    "qwen3next": ("qwen_next", "QWEN3_NEXT"),
    "qwen3vl": ("qwen_vl", "QWEN3VL"),
    "qwen3vlmoe": ("qwen_vl", "QWEN3VL_MOE"),
    "seed_oss": ("seed", "SEED_OSS"),
    "smollm3": ("llama", "SMOLLM3"),
    "stablelm": ("stablelm", "STABLELM"),
    "starcoder2": ("starcoder", "STARCODER2"),
    "step35": ("step3p5", "STEP35"),
}

_SIDE_FILES = {
    "clip": "a multimodal projector (mmproj), which goes beside a text model",
    "mmproj": "a multimodal projector (mmproj), which goes beside a text model",
}


def known_architectures() -> list[str]:
    """All architecture strings with rows, sorted."""
    return sorted(_TABLE)


def find_architecture(name: str, file: str) -> Architecture:
    """The row set for `general.architecture` `name`.

    Raises UnsupportedError for side files, UnknownArchitectureError for families without rows, naming the known ones
    and the nearest.
    """
    if name in _SIDE_FILES:
        raise UnsupportedError(
            f"{file}: is {_SIDE_FILES[name]}, not a model", hint="Give the text model's .gguf file instead."
        )
    entry = _TABLE.get(name)
    if entry is None:
        raise UnknownArchitectureError(
            f"{file}: architecture {name!r} is unknown{_nearest(name)}",
            hint=f"`ggufmap audit` infers rows for it. Known architectures: {', '.join(known_architectures())}.",
        )
    return _load(*entry)


def _load(module: str, attribute: str) -> Architecture:
    architecture: Architecture = getattr(importlib.import_module(f"ggufmap.archs.{module}"), attribute)
    return architecture


def _nearest(name: str) -> str:
    """The known architecture that may be meant: by its model type in config.json (`glm_moe_dsa`), else by spelling."""
    of_type = next((known for known, entry in _TABLE.items() if _load(*entry).model_type == name), None)
    if of_type is not None:
        return f" (it is the model type of {of_type})"
    near = difflib.get_close_matches(name, _TABLE, n=1, cutoff=0.6)
    return f" (nearest: {near[0]})" if near else ""


__all__ = ["Architecture", "Rule", "Skip", "find_architecture", "known_architectures"]
