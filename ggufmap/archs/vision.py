"""Vision towers, as llama.cpp's `mmproj` files have them, and what the processors of their models read.

Source: llama.cpp 0c1e57098 conversion/gemma.py (Gemma3VisionModel), qwenvl.py, qwen3vl.py, gguf-py's tensor_mapping.py;
vLLM 0.32.0 model_executor/models/gemma3_mm.py, siglip.py, qwen2_5_vl.py, qwen3_vl.py; transformers 5.19.0
models/gemma3, qwen2_vl, qwen3_vl (processors). Constants are those of the published models.
"""

from __future__ import annotations

from ggufmap.archs.base import ConfigRow, Rule, Vision, assumed, derived, header, only, renamed, token, top

_QKVO = (("attn_q", "q_proj"), ("attn_k", "k_proj"), ("attn_v", "v_proj"), ("attn_out", "out_proj"))


def _both(gguf: str, checkpoint: str, *, transform: str = "copy") -> tuple[Rule, ...]:
    """The weight and the bias of a module."""
    return tuple(top(f"{gguf}.{part}", f"{checkpoint}.{part}", transform) for part in ("weight", "bias"))


def _mlp(tower: str, up: str, down: str) -> tuple[Rule, ...]:
    """The way up and down of a block; older files name one as the other."""
    plain = _both("v.blk.{bid}.ffn_up", f"{tower}.{up}") + _both("v.blk.{bid}.ffn_down", f"{tower}.{down}")
    swapped = _both("v.blk.{bid}.ffn_down", f"{tower}.{up}") + _both("v.blk.{bid}.ffn_up", f"{tower}.{down}")
    return only(plain, "vision", "plain_mlp") + only(swapped, "vision", "swapped_mlp")


def in_language_model(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The text model's rows where the whole model's checkpoint has `language_model.` before all of them."""
    return renamed(renamed(rules, "model.", "language_model.model."), "lm_head.", "language_model.lm_head.")


_SIGLIP = "vision_tower.vision_model"
_SIGLIP_BLOCK = f"{_SIGLIP}.encoder.layers.{{bid}}"

GEMMA3_TOWER: tuple[Rule, ...] = (
    *_both("v.patch_embd", f"{_SIGLIP}.embeddings.patch_embedding"),
    top("v.position_embd.weight", f"{_SIGLIP}.embeddings.position_embedding.weight"),
    *only(
        (rule for a, b in _QKVO for rule in _both(f"v.blk.{{bid}}.{a}", f"{_SIGLIP_BLOCK}.self_attn.{b}")),
        "vision",
    ),
    *only((rule for n in (1, 2) for rule in _both(f"v.blk.{{bid}}.ln{n}", f"{_SIGLIP_BLOCK}.layer_norm{n}")), "vision"),
    *_mlp(_SIGLIP_BLOCK, "mlp.fc1", "mlp.fc2"),
    *_both("v.post_ln", f"{_SIGLIP}.post_layernorm"),
    top("mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight"),
    top("mm.soft_emb_norm.weight", "multi_modal_projector.mm_soft_emb_norm.weight", "add:-1"),
)
"""SigLIP and Gemma 3's projection; only its norm is stored plus one."""


def _patches(checkpoint: str) -> Rule:
    """The patch embedding over pairs of frames, which the converter cuts in two."""
    return Rule(("v.patch_embd.weight", "v.patch_embd.weight.1"), (f"{checkpoint}.patch_embed.proj.weight",), "frames")


_QWEN25_BLOCK = "visual.blocks.{bid}"
_SPLIT_QKV = ("v.blk.{bid}.attn_q", "v.blk.{bid}.attn_k", "v.blk.{bid}.attn_v")

QWEN25_TOWER: tuple[Rule, ...] = (
    _patches("visual"),
    *only(
        (
            Rule(tuple(f"{x}.weight" for x in _SPLIT_QKV), (f"{_QWEN25_BLOCK}.attn.qkv.weight",), "join_rows"),
            Rule(tuple(f"{x}.bias" for x in _SPLIT_QKV), (f"{_QWEN25_BLOCK}.attn.qkv.bias",), "join_values"),
            *_both("v.blk.{bid}.attn_out", f"{_QWEN25_BLOCK}.attn.proj"),
            *_both("v.blk.{bid}.ffn_gate", f"{_QWEN25_BLOCK}.mlp.gate_proj"),
            top("v.blk.{bid}.ln1.weight", f"{_QWEN25_BLOCK}.norm1.weight"),
            top("v.blk.{bid}.ln2.weight", f"{_QWEN25_BLOCK}.norm2.weight"),
        ),
        "vision",
    ),
    *_mlp(_QWEN25_BLOCK, "mlp.up_proj", "mlp.down_proj"),
    top("v.post_ln.weight", "visual.merger.ln_q.weight"),
    *_both("mm.0", "visual.merger.mlp.0"),
    *_both("mm.2", "visual.merger.mlp.2"),
)

_QWEN3 = "model.visual"
_QWEN3_BLOCK = f"{_QWEN3}.blocks.{{bid}}"
_DEEPSTACK = f"{_QWEN3}.deepstack_merger_list.{{place}}"

QWEN3_TOWER: tuple[Rule, ...] = (
    _patches(_QWEN3),
    top("v.patch_embd.bias", f"{_QWEN3}.patch_embed.proj.bias"),
    top("v.position_embd.weight", f"{_QWEN3}.pos_embed.weight"),
    *only(
        (
            *_both("v.blk.{bid}.attn_qkv", f"{_QWEN3_BLOCK}.attn.qkv"),
            *_both("v.blk.{bid}.attn_out", f"{_QWEN3_BLOCK}.attn.proj"),
            *_both("v.blk.{bid}.ffn_up", f"{_QWEN3_BLOCK}.mlp.linear_fc1"),
            *_both("v.blk.{bid}.ffn_down", f"{_QWEN3_BLOCK}.mlp.linear_fc2"),
            *_both("v.blk.{bid}.ln1", f"{_QWEN3_BLOCK}.norm1"),
            *_both("v.blk.{bid}.ln2", f"{_QWEN3_BLOCK}.norm2"),
        ),
        "vision",
    ),
    *only(
        (
            *_both("v.deepstack.{bid}.norm", f"{_DEEPSTACK}.norm"),
            *_both("v.deepstack.{bid}.fc1", f"{_DEEPSTACK}.linear_fc1"),
            *_both("v.deepstack.{bid}.fc2", f"{_DEEPSTACK}.linear_fc2"),
        ),
        "vision",
        "deepstack",
    ),
    *_both("v.post_ln", f"{_QWEN3}.merger.norm"),
    *_both("mm.0", f"{_QWEN3}.merger.linear_fc1"),
    *_both("mm.2", f"{_QWEN3}.merger.linear_fc2"),
)
"""The mergers of deepstack blocks are stored by block, the checkpoint counts them."""

_SIZES: tuple[ConfigRow, ...] = (
    header("hidden_size", "vision.embedding_length"),
    derived("intermediate_size", "vision_intermediate_size"),
    header("patch_size", "vision.patch_size"),
)
_PIXELS: tuple[ConfigRow, ...] = (derived("image_mean"), derived("image_std"))

GEMMA3_VISION = Vision(
    text_model_type="gemma3_text",
    config=(
        *assumed(model_type="siglip_vision_model"),
        *_SIZES,
        header("num_hidden_layers", "vision.block_count"),
        header("num_attention_heads", "vision.attention.head_count"),
        header("image_size", "vision.image_size"),
        header("layer_norm_eps", "vision.attention.layer_norm_epsilon"),
        *assumed(hidden_act="gelu_pytorch_tanh", num_channels=3, vision_use_head=False, attention_dropout=0.0),
    ),
    outer=(
        derived("mm_tokens_per_image", "gemma3_image_tokens"),
        token("boi_token_index", "<start_of_image>"),
        token("eoi_token_index", "<end_of_image>"),
        # Files from before April 2025 have only the tokens with embeddings of their own.
        token("image_token_index", "<image_soft_token>", guess=True),
        *assumed(initializer_range=0.02),
    ),
    files=(
        (
            "preprocessor_config.json",
            (
                *_PIXELS,
                derived("size", "square_image_size"),
                derived("image_seq_length", "gemma3_image_tokens"),
                *assumed(
                    image_processor_type="Gemma3ImageProcessor",
                    processor_class="Gemma3Processor",
                    do_convert_rgb=None,
                    do_pan_and_scan=None,
                    do_normalize=True,
                    do_rescale=True,
                    do_resize=True,
                    resample=2,
                    rescale_factor=1 / 255,
                ),
            ),
        ),
        (
            "processor_config.json",
            (derived("image_seq_length", "gemma3_image_tokens"), *assumed(processor_class="Gemma3Processor")),
        ),
    ),
    tokens=(
        ("boi_token", "<start_of_image>"),
        ("eoi_token", "<end_of_image>"),
        ("image_token", "<image_soft_token>"),
    ),
)

_QWEN_OUTER: tuple[ConfigRow, ...] = (
    token("image_token_id", "<|image_pad|>"),
    token("video_token_id", "<|video_pad|>"),
    token("vision_start_token_id", "<|vision_start|>"),
    token("vision_end_token_id", "<|vision_end|>"),
)
_QWEN_CONFIG: tuple[ConfigRow, ...] = (
    *_SIZES,
    header("depth", "vision.block_count"),
    header("num_heads", "vision.attention.head_count"),
    derived("out_hidden_size", "vision_output_size"),
    header("spatial_merge_size", "vision.spatial_merge_size", fallback=2),
    derived("temporal_patch_size", "vision_frames"),
    derived("in_channels", "vision_channels"),
    *assumed(initializer_range=0.02),
)
_QWEN_PIXELS: tuple[ConfigRow, ...] = (
    *_PIXELS,
    header("patch_size", "vision.patch_size"),
    header("merge_size", "vision.spatial_merge_size", fallback=2),
    derived("temporal_patch_size", "vision_frames"),
)

QWEN25_VISION = Vision(
    text_model_type="qwen2_5_vl_text",
    config=(
        *assumed(model_type="qwen2_5_vl_vision"),
        *_QWEN_CONFIG,
        derived("fullatt_block_indexes", "full_attention_blocks"),
        *assumed(hidden_act="silu", window_size=112, tokens_per_second=2),
    ),
    outer=_QWEN_OUTER,
    files=(
        (
            "preprocessor_config.json",
            (
                *_QWEN_PIXELS,
                *assumed(
                    image_processor_type="Qwen2VLImageProcessor",
                    processor_class="Qwen2_5_VLProcessor",
                    min_pixels=3136,
                    max_pixels=12_845_056,
                ),
            ),
        ),
    ),
)

QWEN3_VISION = Vision(
    text_model_type="qwen3_vl_text",
    config=(
        *assumed(model_type="qwen3_vl_vision"),
        *_QWEN_CONFIG,
        derived("num_position_embeddings", "vision_positions"),
        derived("deepstack_visual_indexes", "deepstack_blocks"),
        *assumed(hidden_act="gelu_pytorch_tanh"),
    ),
    outer=_QWEN_OUTER,
    files=(
        (
            "preprocessor_config.json",
            (
                *_QWEN_PIXELS,
                *assumed(
                    image_processor_type="Qwen2VLImageProcessorFast",
                    processor_class="Qwen3VLProcessor",
                    size={"longest_edge": 16_777_216, "shortest_edge": 65_536},
                ),
            ),
        ),
        (
            "video_preprocessor_config.json",
            (
                *_QWEN_PIXELS,
                *assumed(
                    video_processor_type="Qwen3VLVideoProcessor",
                    processor_class="Qwen3VLProcessor",
                    size={"longest_edge": 25_165_824, "shortest_edge": 4096},
                ),
            ),
        ),
    ),
)
