"""`ggufmap bench`: how fast this machine loads this file."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.export import Dtype
from ggufmap.cli.output import data_console, progress
from ggufmap.serving.memory import DEFAULT, parse_size

if TYPE_CHECKING:
    from ggufmap.stream.measure import Figures


def bench(
    model: options.Model,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="The model's dtype.")] = Dtype.BFLOAT16,
    most: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Only about so much of the file, from its start.")
    ] = None,
    max_host_memory: options.MaxHostMemory = DEFAULT,
    draft: options.Draft = None,
    as_json: options.Json = False,
) -> None:
    """Load MODEL into reused host memory and say how fast: read, decode, copy, total, beside this machine's limits.

    Needs no vLLM. The file is read three times, the first time as the page cache has it.

    Examples:
        ggufmap bench model.gguf
        ggufmap bench model.gguf --bytes 4G --json
    """
    import torch

    from ggufmap.archs import find_architecture
    from ggufmap.checkpoint import open_checkpoint
    from ggufmap.mapping import resolve
    from ggufmap.remote import fetch
    from ggufmap.stream.measure import measure

    memory = parse_size(max_host_memory, "--max-host-memory")
    limit = None if most is None else parse_size(most, "--bytes")
    files = fetch(model, draft)
    with open_checkpoint(files.model, draft=files.draft) as checkpoint:
        plan = resolve(checkpoint, find_architecture(checkpoint.architecture, str(checkpoint.path)))
        total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
        with progress(checkpoint.name, 3 * min(total, limit or total)) as advance:
            found = measure(plan, checkpoint, getattr(torch, dtype.value), memory, limit, advance)
    if as_json:
        typer.echo(json.dumps({"schema": 1, **dataclasses.asdict(found), "bound_s": found.bound_s}, indent=1))
    else:
        _print(found)


def _print(found: Figures) -> None:
    from rich.table import Table

    table = Table("", "seconds", "GB/s", "of what", box=None, header_style="dim")
    stored, written = found.stored_bytes, found.destination_bytes
    rows = (
        ("load", found.load_s, stored, "stored bytes"),
        ("", found.load_s, written, "bytes of the model's dtype"),
        ("  read", found.stage_read_s / found.threads, stored, "stored bytes"),
        ("  decode", found.stage_decode_s / found.threads, stored, "stored bytes"),
        ("  copy", found.stage_copy_s / found.threads, written, "bytes of the model's dtype"),
        ("limit: read, at first", found.first_read_s, stored, "stored bytes"),
        ("limit: read, again", found.read_s, stored, "stored bytes"),
        ("limit: write", found.write_s, written, "bytes of the model's dtype"),
    )
    for name, seconds, nbytes, what in rows:
        speed = f"{nbytes / seconds / 1e9:.2f}" if seconds else ""
        table.add_row(name, f"{seconds:.3f}", speed, what)
    by = "libgguf" if found.compiler is None else f"what {found.compiler} has built"
    console = data_console()
    console.print(table)
    console.print(
        f"{found.load_s / found.bound_s:.2f} x the time of reading every byte and writing every value once; "
        f"{found.threads} threads, {found.memory_peak / 1e6:.0f} of {found.memory_limit / 1e6:.0f} MB of host memory"
        + (f", decoded by {by}" if found.stage_decode_s else "")
    )
