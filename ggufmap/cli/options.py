"""Arguments and options that several commands share."""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ggufmap.cli.completion import complete_device, complete_model
from ggufmap.cli.output import listen
from ggufmap.cli.versions import versions

FILES, ASKED, OUTPUT = "Files", "What vLLM is asked", "Output"
"""Groups of options in the help."""

Model = Annotated[
    str,  # a Path would make hf:/ of hf://
    typer.Argument(
        metavar="MODEL",
        help="A .gguf file, any split of a set, a folder with one model, hf://ORG/REPO:TAG, or a URL (https, s3).",
        autocompletion=complete_model,
    ),
]
HfConfig = Annotated[
    Path | None,
    typer.Option(
        "--hf-config", metavar="DIR", help="Take config.json from here instead of the header.", rich_help_panel=FILES
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="DIR",
        help="Take the tokenizer from here instead of the file's own.",
        rich_help_panel=FILES,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="FILE",
        help="A separate file with the model's draft blocks (mtp-*.gguf).",
        autocompletion=complete_model,
        rich_help_panel=FILES,
    ),
]
Mmproj = Annotated[
    str | None,
    typer.Option(
        "--mmproj",
        metavar="FILE",
        help="A separate file with the vision tower (default: the only mmproj-*.gguf beside MODEL).",
        autocompletion=complete_model,
        rich_help_panel=FILES,
    ),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Do not ask vLLM: check by the rows alone.", rich_help_panel=ASKED)
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="sm_XY|cpu",
        help="Trace the classes that vLLM uses on this GPU (sm_90, sm_100, sm_120); none is needed.",
        autocompletion=complete_device,
        rich_help_panel=ASKED,
    ),
]
Tp = Annotated[
    int, typer.Option("--tp", metavar="N", help="Trace one rank of N tensor-parallel ones.", rich_help_panel=ASKED)
]
Ep = Annotated[bool, typer.Option("--ep", help="With --tp: experts are spread over the ranks.", rich_help_panel=ASKED)]


class Choice(StrEnum):
    """`mapping.storage.Storage`, which `--help` does not load."""

    AUTO = "auto"
    PACKED = "packed"
    DENSE = "dense"


Storage = Annotated[
    Choice,
    typer.Option(
        "--storage",
        help="Weights in GPU memory: GGUF blocks where vLLM's layers can hold them, only if they can, or never.",
        rich_help_panel=ASKED,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.", rich_help_panel=OUTPUT)]
MaxHostMemory = Annotated[
    str,
    typer.Option(
        "--max-host-memory",
        metavar="SIZE",
        help="Bytes held at a time beside the destination, per process (M, G, Mi, Gi).",
    ),
]


def _quiet(wanted: bool) -> None:
    if wanted:
        listen(quiet=True)


def _verbose(wanted: bool) -> None:
    if wanted:
        listen(verbose=True)
        logging.getLogger("ggufmap").debug("%s", ", ".join(versions()))


QUIET = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_quiet, is_eager=True, help="Only results and errors: no notes, no progress."
    ),
]
VERBOSE = Annotated[
    bool,
    typer.Option("--verbose", "-v", callback=_verbose, is_eager=True, help="Also versions, each stage and its time."),
]
