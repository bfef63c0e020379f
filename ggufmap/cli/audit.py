"""`ggufmap audit`: prove the mapping before a byte is copied."""

from __future__ import annotations

from typing import Annotated

import typer

from ggufmap.cli import options
from ggufmap.cli.output import data_console, note, print_json
from ggufmap.errors import UsageError


def audit(
    model: options.Model,
    hf_config: options.HfConfig = None,
    draft: options.Draft = None,
    mmproj: options.Mmproj = None,
    offline: options.Offline = False,
    device: options.Device = "",
    tp: options.Tp = 1,
    ep: options.Ep = False,
    storage: options.Storage = options.Choice.AUTO,
    stock: Annotated[bool, typer.Option("--stock", help="Also show what gguf-py's own name map would do.")] = False,
    as_json: options.Json = False,
) -> None:
    """Check that every tensor of MODEL has its place in vLLM, and every vLLM parameter its tensors.

    With vLLM installed, the real model class is built without memory and its own weight loading is traced.

    Exit codes: 0 clean, 1 the mapping has problems, 2 bad input or usage, 3 this environment cannot do it.
    """
    from ggufmap.mapping.storage import Storage
    from ggufmap.report.as_json import plan_report
    from ggufmap.report.console import print_plan
    from ggufmap.serving.preflight import preflight
    from ggufmap.target.client import vllm_available
    from ggufmap.target.devices import World

    world = World(device, tp, ep) if device or tp > 1 or ep else None
    if offline and world is not None:
        raise UsageError("--offline traces nothing: leave out --device, --tp and --ep")
    if not offline and vllm_available():
        note("Asking vLLM where every tensor goes (about ten seconds; --offline skips it) ...", "dim")
    found = preflight(
        model,
        hf_config=hf_config,
        draft=draft,
        mmproj=mmproj,
        offline=offline,
        stock=stock,
        world=world,
        storage=Storage(storage),
    )
    with found.checkpoint:
        config = found.config
        if as_json:
            print_json(plan_report(found.plan, config_source=config.source, assumed=config.assumed))
        else:
            print_plan(data_console(), found.plan, config_source=config.source, assumed=config.assumed)
    if not found.plan.ok:
        raise typer.Exit(1)
