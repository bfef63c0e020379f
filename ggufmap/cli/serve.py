"""`ggufmap serve`: audit, then become `vllm serve`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.output import data_console, note
from ggufmap.errors import plural
from ggufmap.serving.memory import DEFAULT, parse_size

if TYPE_CHECKING:
    from ggufmap.remote.locate import Files
    from ggufmap.serving.preflight import Preflight
    from ggufmap.serving.serve import ServeCommand

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
        ggufmap serve hf://ORG/REPO:Q4_K_M  # audited over the network, then downloaded
    """
    from ggufmap.mapping.storage import Storage
    from ggufmap.serving.port import check_port
    from ggufmap.serving.preflight import preflight
    from ggufmap.serving.serve import online_quantisation, serve_command, speculative_config, vllm_world

    extra = vllm_args or []
    memory = parse_size(max_host_memory, "--max-host-memory")
    world, online = None if offline else vllm_world(extra), online_quantisation(extra)

    look = partial(
        preflight,
        hf_config=hf_config,
        offline=offline,
        world=world,
        storage=Storage(storage),
        online=online,
        infer_unknown=force,
    )
    files = _at_hand(model, draft, mmproj, look, partial(_refuse, extra=extra, force=force), dry_run)
    if files is None:
        return
    found = look(files.model, draft=files.draft, mmproj=files.mmproj)
    with found.checkpoint:
        _gate(found, extra, force=force)
        if not dry_run:
            check_port(extra)
        chat = _chat(found, extra, chat_template, own=tokenizer is None, force=force)
        speculation = speculative_config(found, extra, enabled=not no_mtp, tokens=num_speculative_tokens)
        command = serve_command(found, (*chat, *extra), tokenizer=tokenizer, speculation=speculation, memory=memory)
        _say_odd(found, own=tokenizer is None)
    _become(command, files, dry_run=dry_run)


def _chat(found: Preflight, extra: list[str], given: Path | None, *, own: bool, force: bool) -> Sequence[str]:
    """vLLM's options for the chat template; says why chat is off."""
    from ggufmap.serving.chat import chat_arguments

    arguments, said = chat_arguments(found.checkpoint.metadata, extra, given=given, own=own, force=force)
    if said:
        note(said, "bold red")
    return arguments


def _say_odd(found: Preflight, *, own: bool) -> None:
    """What is odd about the file's `own` token list, if that is used."""
    from ggufmap.modeldir.build import tokenizer_warnings

    for odd in tokenizer_warnings(found.checkpoint) if own else ():
        note(f"tokenizer: {odd}", "yellow")


def _become(command: ServeCommand, files: Files, *, dry_run: bool) -> None:
    """Run the command in this process's place, or print it with its environment."""
    from ggufmap.serving.serve import run

    if dry_run:
        settings = [f"{key}={shlex.quote(value)}" for key, value in command.environment.items()]
        typer.echo(" ".join([*settings, shlex.join(command.arguments)]))
        return
    note(f"Serving {command.served_name} from {files.model}: {shlex.join(command.arguments)}", "dim")
    run(command)


def _at_hand(
    model: str,
    draft: str | None,
    mmproj: str | None,
    look: Callable[..., Preflight],
    refuse: Callable[[Preflight], object],
    dry_run: bool,
) -> Files | None:
    """The files, downloaded if need be, and only if they would be served. None where only asked what would be."""
    from ggufmap.remote import fetch, locate, to_download

    place = locate(model)
    draft_at, mmproj_at = (None if side is None else locate(side) for side in (draft, mmproj))
    missing = [name for at in (place, draft_at, mmproj_at) if at is not None for name in to_download(at)]
    if missing:
        found = look(place, draft=draft_at, mmproj=mmproj_at)
        with found.checkpoint as checkpoint:
            refuse(found)
            what = f"{plural(len(missing), 'file')} of {place}, {checkpoint.nbytes / 1e9:.1f} GB"
        if dry_run:
            note(f"would be downloaded first: {what}: {', '.join(missing)}")
            return None
        note(f"Downloading {what} ...", "dim")
    return fetch(place, draft_at, mmproj_at)


def _gate(found: Preflight, extra: list[str], *, force: bool) -> None:
    """Say what is odd; raise what speaks against serving, or with `force` say that, too."""
    objections = _refuse(found, extra, force=force)
    for warning in found.plan.warnings:
        note(f"{warning.code} {warning.message}", "yellow")
    for objection in objections:
        note(f"--force: {objection}", "bold red")


def _refuse(found: Preflight, extra: list[str], *, force: bool) -> list[str]:
    """Raise what speaks against serving; with `force`, give it back."""
    from ggufmap.report.console import print_plan
    from ggufmap.serving.serve import check_gate

    if not found.plan.ok:
        print_plan(data_console(), found.plan, config_source=found.config.source, assumed=found.config.assumed)
    return check_gate(found, extra, force=force)
