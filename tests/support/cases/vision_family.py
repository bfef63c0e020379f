"""Multimodal models: the text in one file, the vision tower in an `mmproj` file beside it."""

from __future__ import annotations

from typing import Any

from support.conformance import BASE, Case, Tensors

_TEXT: dict[str, Any] = {key: value for key, value in BASE.items() if key != "tie_word_embeddings"}
_QWEN_TEXT = {**_TEXT, "bos_token_id": 504, "eos_token_id": 506}
_QWEN_TOKENS = {
    "image_token_id": 510,
    "video_token_id": 511,
    "vision_start_token_id": 507,
    "vision_end_token_id": 508,
    "tie_word_embeddings": False,
}
_VISION = {"hidden_size": 64, "intermediate_size": 96, "hidden_act": "silu"}
_QWEN3_HEADS = {
    "head_dim": 64,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 20_000.0,
        "mrope_section": [12, 10, 10],
        "mrope_interleaved": True,
    },
}
_QWEN3_VISION = {
    **_VISION,
    "hidden_act": "gelu_pytorch_tanh",
    "depth": 5,
    "num_heads": 4,
    "out_hidden_size": BASE["hidden_size"],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [1, 3],
}
_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_HALVES = [0.5, 0.5, 0.5]

_GEMMA3_PROCESSOR = {
    "preprocessor_config.json": {
        "do_convert_rgb": None,
        "do_normalize": True,
        "do_pan_and_scan": None,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": _HALVES,
        "image_processor_type": "Gemma3ImageProcessor",
        "image_seq_length": 4,
        "image_std": _HALVES,
        "processor_class": "Gemma3Processor",
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": 56, "width": 56},
    },
    "processor_config.json": {"image_seq_length": 4, "processor_class": "Gemma3Processor"},
}
_QWEN25_PROCESSOR = {
    "preprocessor_config.json": {
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
    }
}
_QWEN3_PIXELS = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": _HALVES}
_QWEN3_PROCESSOR = {
    "preprocessor_config.json": {
        **_QWEN3_PIXELS,
        "image_std": _HALVES,
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
    },
    "video_preprocessor_config.json": {
        **_QWEN3_PIXELS,
        "image_std": _HALVES,
        "size": {"longest_edge": 25165824, "shortest_edge": 4096},
        "video_processor_type": "Qwen3VLVideoProcessor",
        "processor_class": "Qwen3VLProcessor",
    },
}


_IGNORED = {
    "pad_token_id": "the tokenizer's, which this config does not repeat",
    "vision_config.rope_parameters": "transformers 5 writes what the class always does; vLLM does not read it",
}


def _gemma3_published(tensors: Tensors, _: Any) -> Tensors:
    """The names of real repositories; the projection in values of F16, which the converter stores it in."""
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): t for name, t in tensors.items()}
    return {name: t.half().float() if "input_projection" in name else t for name, t in named.items()}


def _qwen3_moe_published(tensors: Tensors, _: Any) -> Tensors:
    """Experts the other way round, as real repositories have them; transformers 5 saves them as its class does."""
    return {name: t.transpose(1, 2) if ".experts." in name else t for name, t in tensors.items()}


_TEXT_ONLY = "tests/engine/test_vision.py: the same text; images need torchvision, which a CPU-only torch does not have"

CASES: tuple[Case, ...] = (
    Case(
        "gemma3_vision",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {
                **_TEXT,
                "num_hidden_layers": 7,
                "num_attention_heads": 4,
                "head_dim": 128,
                "query_pre_attn_scalar": 128,
                "sliding_window": 16,
            },
            "vision_config": {
                **_VISION,
                "hidden_act": "gelu_pytorch_tanh",
                "model_type": "siglip_vision_model",
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 4,
            "boi_token_index": 7,
            "eoi_token_index": 8,
            "image_token_index": 9,
        },
        base=False,
        tokenizer="gemma_vision",
        publish=_gemma3_published,
        ignore={
            "_sliding_window_pattern": "layer_types says the same",
            "use_bidirectional_attention": "false in every Gemma 3",
        },
        projector=_GEMMA3_PROCESSOR,
        not_run="tests/engine/test_vision.py: the same text, and the same of images",
    ),
    Case(
        "qwen25vl",
        "Qwen2_5_VLForConditionalGeneration",
        {
            **_QWEN_TOKENS,
            "text_config": {
                **_QWEN_TEXT,
                "rope_parameters": {"rope_type": "default", "rope_theta": 20_000.0, "mrope_section": [4, 6, 6]},
            },
            "vision_config": {
                **_VISION,
                "depth": 4,
                "num_heads": 4,
                "out_hidden_size": BASE["hidden_size"],
                "fullatt_block_indexes": [1, 3],
                "tokens_per_second": 2,
            },
        },
        base=False,
        tokenizer="qwen_vision",
        projector=_QWEN25_PROCESSOR,
        not_run=_TEXT_ONLY,
        ignore={**_IGNORED, "max_window_layers": "the GGUF has no such key; every layer is a full one"},
    ),
    Case(
        "qwen3vl",
        "Qwen3VLForConditionalGeneration",
        {
            **_QWEN_TOKENS,
            "text_config": {
                **_QWEN_TEXT,
                **_QWEN3_HEADS,
            },
            "vision_config": _QWEN3_VISION,
        },
        base=False,
        tokenizer="qwen_vision",
        projector=_QWEN3_PROCESSOR,
        not_run=_TEXT_ONLY,
        ignore=_IGNORED,
    ),
    Case(
        "qwen3vlmoe",
        "Qwen3VLMoeForConditionalGeneration",
        {
            **_QWEN_TOKENS,
            "text_config": {
                **_QWEN_TEXT,
                **_QWEN3_HEADS,
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 512,
                "tie_word_embeddings": False,
            },
            "vision_config": _QWEN3_VISION,
        },
        base=False,
        tokenizer="qwen_vision",
        projector=_QWEN3_PROCESSOR,
        publish=_qwen3_moe_published,
        not_run="vLLM imports torchvision for it, which PyPI does not have for a CPU-only torch",
        ignore={**_IGNORED, "num_local_experts": "transformers 5's own name for num_experts"},
    ),
)
