"""DBRX: LayerNorm without bias, fused query, key and value, experts stacked in matrices.

Source: llama.cpp 0c1e57098 conversion/dbrx.py; vLLM 0.32.0 model_executor/models/dbrx.py.
"""

from __future__ import annotations

from ggufmap.archs.base import Architecture, Rule, assumed, derived, header, top

_BLOCK = "transformer.blocks.{bid}."


def _row(tensor: str, checkpoint: str, transform: str = "copy") -> Rule:
    return Rule((f"blk.{{bid}}.{tensor}.weight",), (f"{_BLOCK}{checkpoint}",), transform)


DBRX = Architecture(
    names=("dbrx",),
    model_type="dbrx",
    model_class="DbrxForCausalLM",
    rules=(
        top("token_embd.weight", "transformer.wte.weight"),
        top("output_norm.weight", "transformer.norm_f.weight"),
        top("output.weight", "lm_head.weight"),
        _row("attn_norm", "norm_attn_norm.norm_1.weight"),
        _row("attn_qkv", "norm_attn_norm.attn.Wqkv.weight"),
        _row("attn_output", "norm_attn_norm.attn.out_proj.weight"),
        _row("attn_output_norm", "norm_attn_norm.norm_2.weight"),
        _row("ffn_gate_inp", "ffn.router.layer.weight"),
        _row("ffn_gate_exps", "ffn.experts.mlp.w1", "experts_below"),
        _row("ffn_up_exps", "ffn.experts.mlp.v1", "experts_below"),
        _row("ffn_down_exps", "ffn.experts.mlp.w2", "turned_experts_below"),
    ),
    config=(
        derived("vocab_size"),
        header("d_model", "embedding_length"),
        header("n_heads", "attention.head_count"),
        derived("n_layers", "num_hidden_layers"),
        header("max_seq_len", "context_length"),
        derived("attn_config", "dbrx_attention"),
        derived("ffn_config", "dbrx_experts"),
        derived("bos_token_id"),
        derived("eos_token_id"),
        derived("pad_token_id"),
        *assumed(tie_word_embeddings=False, use_cache=True, initializer_range=0.02),
        *assumed(resid_pdrop=0.0, emb_pdrop=0.0, output_router_logits=False),
    ),
)
