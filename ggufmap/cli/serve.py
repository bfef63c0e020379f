"""`ggufmap serve`: audit, then become `vllm serve`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.output import data_console, note
from ggufmap.serving.memory import DEFAULT, parse_size

if TYPE_CHECKING:
    from ggufmap.serving.preflight import Preflight

_VllmOptions = Annotated[
    list[str] | None, typer.Argument(metavar="-- VLLM_OPTIONS", help="Options of `vllm serve`, after `--`.")
]
_ChatTemplate = Annotated[
    Path | None,
    typer.Option(
        "--chat-template",
        metavar="FILE",
        help="A Jinja template instead of the file's own.",
        rich_help_panel=options.FILES,
    ),
]
_DRAFTING = "Speculative decoding"
_NoMtp = Annotated[
    bool,
    typer.Option("--no-mtp", help="None, though the file has a draft.", rich_help_panel=_DRAFTING),
]
_DraftTokens = Annotated[
    int | None,
    typer.Option(
        "--num-speculative-tokens",
        metavar="N",
        min=1,
        help="Draft tokens per step (default: one per draft block).",
        rich_help_panel=_DRAFTING,
    ),
]


def serve(
    model: options.Model,
    vllm_args: _VllmOptions = None,
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    tokenizer: options.Tokenizer = None,
    chat_template: _ChatTemplate = None,
    offline: options.Offline = False,
    no_mtp: _NoMtp = False,
    num_speculative_tokens: _DraftTokens = None,
    storage: options.Storage = options.Choice.AUTO,
    max_host_memory: options.MaxHostMemory = DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Go on although something is wrong or refused.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and environment, run nothing.")] = False,
) -> None:
    """Serve MODEL with vLLM: audit it first, write its config and tokenizer, then run `vllm serve`.

    A file with MTP (nextn) blocks is served with speculative decoding. The process becomes vLLM, which gets the signals
    and gives the exit code. Anything after `--` goes to `vllm serve`.

    Examples:
        ggufmap serve model.gguf
        ggufmap serve model.gguf -- --port 8001 --max-model-len 4096
        ggufmap serve model.gguf -- --tensor-parallel-size 8 --enable-expert-parallel
        ggufmap serve model.gguf --dry-run  # the command and its environment
    """
    from ggufmap.mapping.storage import Storage
    from ggufmap.modeldir.build import tokenizer_warnings
    from ggufmap.serving.chat import chat_arguments
    from ggufmap.serving.preflight import preflight
    from ggufmap.serving.serve import online_quantisation, run, serve_command, speculative_config, vllm_world

    extra = vllm_args or []
    memory = parse_size(max_host_memory, "--max-host-memory")
    found = preflight(
        model,
        hf_config=hf_config,
        draft=draft,
        mmproj=mmproj,
        offline=offline,
        world=None if offline else vllm_world(extra),
        storage=Storage(storage),
        online=online_quantisation(extra),
        infer_unknown=force,
    )
    with found.checkpoint:
        _gate(found, extra, force=force)
        chat, said = chat_arguments(
            found.checkpoint.metadata, extra, given=chat_template, own=tokenizer is None, force=force
        )
        if said:
            note(said, "bold red")
        speculation = speculative_config(found, extra, enabled=not no_mtp, tokens=num_speculative_tokens)
        command = serve_command(found, (*chat, *extra), tokenizer=tokenizer, speculation=speculation, memory=memory)
        for odd in tokenizer_warnings(found.checkpoint) if tokenizer is None else ():
            note(f"tokenizer: {odd}", "yellow")
    if dry_run:
        settings = [f"{key}={shlex.quote(value)}" for key, value in command.environment.items()]
        typer.echo(" ".join([*settings, shlex.join(command.arguments)]))
        return
    note(f"Serving {command.served_name} from {model}: {shlex.join(command.arguments)}", "dim")
    run(command)


def _gate(found: Preflight, extra: list[str], *, force: bool) -> None:
    """Say what is odd; raise what speaks against serving, or with `force` say that, too."""
    from ggufmap.report.console import print_plan
    from ggufmap.serving.serve import check_gate

    if not found.plan.ok:
        print_plan(data_console(), found.plan, config_source=found.config.source, assumed=found.config.assumed)
    for warning in found.plan.warnings:
        note(f"{warning.code} {warning.message}", "yellow")
    for objection in check_gate(found, extra, force=force):
        note(f"--force: {objection}", "bold red")
