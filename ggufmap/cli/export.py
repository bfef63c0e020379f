"""`ggufmap export`: the file as a safetensors checkpoint."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.output import note, progress
from ggufmap.errors import plural
from ggufmap.serving.memory import DEFAULT, parse_size


class Dtype(StrEnum):
    """What quantised tensors become."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


def export(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder, or an unfinished one.")],
    dtype: Annotated[Dtype, typer.Option("--dtype", help="What quantised tensors become.")] = Dtype.BFLOAT16,
    shard_size: Annotated[str, typer.Option("--shard-size", metavar="SIZE", help="Bytes per file.")] = "4G",
    max_host_memory: options.MaxHostMemory = DEFAULT,
    hf_config: options.HfConfig = None,
    tokenizer: options.Tokenizer = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
) -> None:
    """Write MODEL as sharded safetensors with config and tokenizer: a checkpoint that needs no ggufmap.

    A killed export never looks whole; run again, it goes on where it stopped.

    Examples:
        ggufmap export model.gguf -o model-bf16
        ggufmap export model.gguf -o model-f32 --dtype float32 --shard-size 2G
    """
    import torch

    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.mapping import resolve
    from ggufmap.modeldir.build import add_model_files
    from ggufmap.modeldir.config import build_config
    from ggufmap.remote import fetch
    from ggufmap.stream.export import export as write

    shard_bytes = parse_size(shard_size, "--shard-size")
    memory = parse_size(max_host_memory, "--max-host-memory")
    files = fetch(model, draft, mmproj)
    with open_checkpoint(files.model, draft=files.draft, mmproj=files.mmproj, look_beside=True) as checkpoint:
        architecture = find_architecture(checkpoint.architecture, str(checkpoint.path))
        plan = resolve(checkpoint, architecture)
        config = build_config(checkpoint, architecture, hf_config)
        total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        with progress(checkpoint.name, total) as advance:
            done = write(
                plan,
                checkpoint,
                output,
                dtype=getattr(torch, dtype.value),
                shard_bytes=shard_bytes,
                progress=advance,
                memory=memory,
            )
        add_model_files(output, checkpoint, config, tokenizer=tokenizer)
    for warning in config.warnings:
        note(f"{warning.code} {warning.message}", "yellow")
    if done.out_of_range:
        note(f"{done.out_of_range} values are outside float16's range; bfloat16 holds them", "bold red")
    again = f", {done.reused} of them already there" if done.reused else ""
    note(f"{plural(len(done.files), 'file')}{again}, {done.nbytes / 1e9:.2f} GB", "dim")
    typer.echo(output)
