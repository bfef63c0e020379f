"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A .gguf file, any split of a set, or a folder with one model.")
]
HfConfig = Annotated[
    Path | None,
    typer.Option("--hf-config", metavar="DIR", help="Take config.json from here instead of the header."),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="DIR", help="Take the tokenizer from here instead of the file's own."),
]
Draft = Annotated[
    Path | None,
    typer.Option("--draft", metavar="FILE", help="A separate file with the model's draft blocks (mtp-*.gguf)."),
]
Mmproj = Annotated[
    Path | None,
    typer.Option(
        "--mmproj",
        metavar="FILE",
        help="A separate file with the vision tower (default: the only mmproj-*.gguf beside MODEL).",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Do not ask vLLM: check by the rows alone.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="sm_XY|cpu",
        help="Trace the classes that vLLM uses on this GPU (sm_90, sm_100, sm_120); none is needed.",
    ),
]
Tp = Annotated[int, typer.Option("--tp", metavar="N", help="Trace one rank of N tensor-parallel ones.")]
Ep = Annotated[bool, typer.Option("--ep", help="With --tp: experts are spread over the ranks.")]


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
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
MaxHostMemory = Annotated[
    str,
    typer.Option(
        "--max-host-memory",
        metavar="SIZE",
        help="Bytes held at a time beside the destination, per process (M, G, Mi, Gi).",
    ),
]
