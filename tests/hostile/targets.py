"""What fuzzing runs: each takes the bytes of a file, and lets nothing escape but our own errors, which it drops."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hostile.corpus import CASES
from hostile.models import spm, vocabulary
from rich.console import Console
from support import gguf_bytes as gb
from support import small_models as small

from ggufmap.archs import find_architecture, known_architectures
from ggufmap.archs.base import Source
from ggufmap.checkpoint import Checkpoint, open_checkpoint
from ggufmap.checkpoint.checkpoint import Split
from ggufmap.checkpoint.header import check_data, parse_header
from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import FileError, GgufmapError
from ggufmap.mapping import resolve
from ggufmap.modeldir.config import build_config
from ggufmap.modeldir.template import inspect_template, read_templates
from ggufmap.modeldir.tokenizer import build_tokenizer
from ggufmap.report.as_json import plan_report
from ggufmap.report.console import print_plan

NAME = "/nowhere/m.gguf"
BETWEEN_SPLITS = b"\xff--split--\xff"
_LARGEST_SEED = 8192


class Memory:
    """A byte source in memory, as strict as a local file."""

    name = NAME

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or length > self.size - offset:
            raise FileError(f"{self.name}: {length} bytes wanted at offset {offset}, the file has {self.size}")
        return self.data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def advise(self, offset: int, length: int, *, needed: bool) -> None:
        pass

    def close(self) -> None:
        pass


def _opened(data: bytes) -> Checkpoint:
    source = Memory(data)
    return Checkpoint(Path(NAME), (Split(source, parse_header(source), Path(NAME)),))


GETTERS = (
    Metadata.integer,
    Metadata.number,
    Metadata.boolean,
    Metadata.string,
    Metadata.strings,
    Metadata.raw_strings,
    Metadata.numbers,
    Metadata.integer_list,
)


def header(data: bytes) -> None:
    """The header, every getter on every key, the check of the data, every tensor's bytes."""
    checkpoint = _opened(data)
    for key in checkpoint.metadata:
        for getter in GETTERS:
            with contextlib.suppress(GgufmapError):
                getter(checkpoint.metadata, key)
    read_templates(checkpoint.metadata)
    check_data(checkpoint.splits[0].header, checkpoint.splits[0].source)
    for tensor in checkpoint.tensors.values():
        with contextlib.suppress(GgufmapError):
            checkpoint.read(tensor)
            checkpoint.read(tensor, slice(0, 1))
    checkpoint.header_hash()


def splits(data: bytes) -> None:
    """A set of files, joined by BETWEEN_SPLITS, opened by its first member (in memory where /dev/shm is)."""
    parts = data.split(BETWEEN_SPLITS)[:8]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for no, part in enumerate(parts, start=1):
            Path(folder, f"s-{no:05d}-of-{len(parts):05d}.gguf").write_bytes(part)
        open_checkpoint(Path(folder, f"s-00001-of-{len(parts):05d}.gguf"), check=False).close()


def tokenizer(data: bytes) -> None:
    """The tokenizer's files."""
    build_tokenizer(_opened(data).metadata)


def config(data: bytes) -> None:
    """The plan, the config, and both reports."""
    checkpoint = _opened(data)
    architecture = find_architecture(checkpoint.architecture, NAME)
    plan = resolve(checkpoint, architecture)
    made = build_config(checkpoint, architecture)
    report = plan_report(plan, config_source=made.source, assumed=made.assumed)
    json.dumps([report, dict(made.values)], allow_nan=False)
    print_plan(Console(file=io.StringIO(), width=160), plan, config_source=made.source, assumed=made.assumed)


def template(data: bytes) -> None:
    """A chat template; any text will do."""
    inspect_template(data.decode(errors="replace"))


@dataclass(frozen=True)
class Target:
    """A function of a file's bytes, and files to start from."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]

    def check(self, data: bytes) -> None:
        """Run it; whatever is raised here is a defect."""
        with contextlib.suppress(GgufmapError):
            self.run(data)


def _headers() -> list[bytes]:
    sound = [case for case in CASES if case.stage == "open" and case.ours is None]
    files = [data for case in sound if len(case.files()) == 1 for data in case.files().values()]
    return [data for data in files if len(data) <= _LARGEST_SEED]


def _sets() -> list[bytes]:
    few = [small.tensor(name, 2) for name in ("a", "b", "c")]
    found = []
    for count in (1, 2, 3):
        files = [
            small.encode(
                {
                    "general.architecture": (gb.STRING, "llama"),
                    "split.no": (gb.UINT16, no),
                    "split.count": (gb.UINT16, count),
                    "split.tensors.count": (gb.INT32, 3),
                },
                few[no::count],
            )
            for no in range(count)
        ]
        found.append(BETWEEN_SPLITS.join(files))
    return found


def _vocabularies() -> list[bytes]:
    words = ["<s>", "</s>", "a", "b", "ab", "<|im_end|>"]
    bpe = vocabulary(
        tokens=(gb.ARRAY, gb.Array(gb.STRING, words)),
        token_type=(gb.ARRAY, gb.Array(gb.INT32, [3, 3, 1, 1, 1, 4])),
        merges=(gb.ARRAY, gb.Array(gb.STRING, ["a b"])),
        bos_token_id=(gb.UINT32, 0),
        eos_token_id=(gb.UINT32, 1),
        add_bos_token=(gb.BOOL, 1),
        chat_template=(gb.STRING, "{{ messages }}"),
    )
    pieces = spm(
        tokens=(gb.ARRAY, gb.Array(gb.STRING, ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "▁a", "▁▁"])),
        token_type=(gb.ARRAY, gb.Array(gb.INT32, [2, 3, 3, 6, 1, 1, 1, 1])),
        scores=(gb.ARRAY, gb.Array(gb.FLOAT32, [0, 0, 0, 0, -1, -2, -3, -4])),
    )
    models = {"tokenizer.ggml.model": (gb.STRING, "gemma4")}
    raw = {"general.architecture": (gb.STRING, "qwen2")}
    return [small.encode(meta, []) for meta in (bpe, pieces, bpe | raw, bpe | models)]


def _families() -> list[bytes]:
    """One header per family: every key that its rows read, and the tensors of its first block."""
    found = []
    for name in known_architectures():
        architecture = find_architecture(name, NAME)
        asked = [str(row.value) for row in architecture.config if row.source is Source.HEADER]
        meta: small.Metadata = {f"{name}.{key}": (gb.UINT32, 4) for key in asked}
        meta |= {key.replace("llama.", f"{name}."): value for key, value in small.llama_metadata(1).items()}
        meta["general.architecture"] = (gb.STRING, name)
        names = dict.fromkeys(x.replace("{bid}", "0") for rule in architecture.rules[:12] for x in rule.tensors)
        found.append(small.encode(meta, [small.tensor(x, 8, 4) for x in names]))
    return found


def _templates() -> list[bytes]:
    texts = [
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content|trim }}{% endfor %}",
        "{% set c = messages[0]['content'] %}{% if 'x y' in c.lower() or c == 'w' ~ 'v' %}{{ now }}{% endif %}",
        "{%- macro f(a, b=1) -%}{{ a|attr('b') + 'c' * 2 ** 3 }}{%- endmacro -%}{{ f([1, 2][0], b={'k': (1, 2)}) }}",
        "{% set x = 'ab' * 9 %}{% macro f(a) %}{% for i in range(9) recursive %}{{ f(i) }}{{ loop(i) }}{% endfor %}"
        "{% endmacro %}{% for c in x %}{% set n.x = n.x ~ n.x + 'b' %}{% call f(c) %}{{ c }}{% endcall %}{% endfor %}",
        "{% generation %}{% if a is defined and not b %}{% break %}{% elif c %}{% include 'x' %}{% endif %}"
        "{% endgeneration %}",
    ]
    return [text.encode() for text in texts]


TARGETS: dict[str, Target] = {
    "header": Target(header, _headers),
    "splits": Target(splits, _sets),
    "tokenizer": Target(tokenizer, _vocabularies),
    "config": Target(config, _families),
    "template": Target(template, _templates),
}
