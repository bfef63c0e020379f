"""`ggufmap map`: the full listing, tensor by tensor."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from rich.text import Text

from ggufmap.cli import options
from ggufmap.cli.output import data_console, print_json
from ggufmap.errors import UsageError
from ggufmap.report.patterns import printable

_QUOTE = "Put a backslash before characters that stand for themselves: 'blk\\.0\\.'"


def map_(
    model: options.Model,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="REGEX", help="Only lines in which any name matches.", rich_help_panel=options.OUTPUT
        ),
    ] = None,
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    offline: options.Offline = False,
    as_json: options.Json = False,
) -> None:
    """List every tensor of MODEL with its checkpoint tensors and vLLM parameters.

    Exit codes are those of `audit`.

    Examples:
        ggufmap map model.gguf --offline
        ggufmap map model.gguf --filter 'blk\\.0\\.'  # the first block
        ggufmap map model.gguf --filter kv_b_proj     # what becomes this parameter
    """
    from ggufmap.report.as_json import assignments
    from ggufmap.serving.preflight import preflight

    try:
        wanted = re.compile(pattern or "")
    except re.error as e:
        raise UsageError(f"--filter {pattern!r} is not a regular expression: {e}", hint=_QUOTE) from e
    found = preflight(model, hf_config=hf_config, draft=draft, mmproj=mmproj, offline=offline)
    with found.checkpoint:
        entries = [entry for entry in assignments(found.plan) if any(map(wanted.search, _names(entry)))]
        kinds = (("unmapped", found.plan.unmapped), ("mismatched", found.plan.mismatched))
        entries += [
            {"tensor": x.tensor, "role": role, "reason": x.reason}
            for role, problems in kinds
            for x in problems
            if wanted.search(x.tensor)
        ]
    if as_json:
        print_json(entries)
    else:
        _print(entries)
    if not found.plan.ok:
        raise typer.Exit(1)


def _names(entry: dict[str, Any]) -> list[str]:
    return [entry["tensor"], *entry["checkpoint"], *(use["name"] for use in entry["parameters"])]


def _print(entries: list[dict[str, Any]]) -> None:
    console = data_console()
    for entry in entries:
        if entry["reason"] is not None:
            line = f"{entry['tensor']}  {entry['role']}: {entry['reason']}"
        else:
            uses = [f"{u['name']}" + ("" if u["shard"] is None else f"[{u['shard']}]") for u in entry["parameters"]]
            via = "" if entry["transform"] == "copy" else f" ({entry['transform']})"
            chain = [", ".join(entry["checkpoint"]) + via, *([", ".join(dict.fromkeys(uses))] if uses else [])]
            shape = "x".join(map(str, entry["shape"]))
            line = f"{entry['tensor']}  {entry['ggml_type']} {shape}  ->  {'  ->  '.join(chain)}"
        console.print(Text(printable(line)), soft_wrap=True)
