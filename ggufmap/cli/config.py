"""`ggufmap config`: write the model directory (config, tokenizer, template) that a GGUF header stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.output import note


def config(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder.")],
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    tokenizer: options.Tokenizer = None,
) -> None:
    """Write config.json, generation_config.json, the tokenizer and the chat template of MODEL into DIR.

    `vllm serve DIR --load-format ggufmap` then serves the file without another word.

    Examples:
        ggufmap config model.gguf -o model-dir
        ggufmap config model.gguf -o model-dir --tokenizer original/
    """
    from ggufmap.archs import find_architecture
    from ggufmap.modeldir.build import build_model_dir
    from ggufmap.modeldir.config import build_config
    from ggufmap.remote import open_model

    with open_model(model, draft=draft, mmproj=mmproj, look_beside=True) as checkpoint:
        architecture = find_architecture(checkpoint.architecture, str(checkpoint.path))
        built = build_config(checkpoint, architecture, hf_config)
        folder = build_model_dir(checkpoint, built, tokenizer=tokenizer, output=output)
    for warning in built.warnings:
        note(f"{warning.code} {warning.message}", "yellow")
    for key, value in built.assumed.items():
        note(f"assumed {key} = {value!r} (not in the header)", "dim")
    typer.echo(folder)
