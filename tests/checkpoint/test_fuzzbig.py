"""Whatever bytes a file has, reading it, mapping it and deriving its config ends well or in a GgufmapError."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import gguf_bytes as gb
from support import small_models as small

from ggufmap.archs import find_architecture, known_architectures
from ggufmap.archs.base import Source
from ggufmap.checkpoint import open_checkpoint
from ggufmap.checkpoint.metadata import Array, Metadata
from ggufmap.errors import GgufmapError
from ggufmap.mapping import resolve
from ggufmap.modeldir.config import build_config
from ggufmap.report.as_json import plan_report

TENSORS = [
    *small.llama_tensors(1),
    small.tensor("rope_freqs.weight", 8, data=struct.pack("<8f", 1, 1, 1, 2, 4, 8, 8, 8)),
]
SEED = small.encode(
    small.llama_metadata(1)
    | {
        "llama.rope.dimension_count": (gb.UINT32, 16),
        "tokenizer.ggml.eos_token_id": (gb.UINT32, 2),
        "tokenizer.ggml.tokens": (gb.ARRAY, gb.Array(gb.STRING, ["a", "b", "c"])),
        "tokenizer.ggml.scores": (gb.ARRAY, gb.Array(gb.FLOAT32, [0.5, 1.5, 2.5])),
        "nested": (gb.ARRAY, gb.Array(gb.ARRAY, [gb.Array(gb.UINT8, [1])])),
    },
    TENSORS,
)
HEADER = SEED.index(b"rope_freqs.weight") + 100  # where the interesting bytes end
INTERESTING = (0, 1, 2, 7, 8, 13, 127, 128, 255)

positions = st.integers(0, HEADER - 1)
mutation = st.tuples(positions, st.one_of(st.sampled_from(INTERESTING), st.integers(0, 255)))
long_mutation = st.tuples(positions, st.binary(min_size=1, max_size=12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def everything(path: Path) -> None:
    """All that an offline audit does, and all bytes."""
    with open_checkpoint(path) as checkpoint:
        getters: list[Callable[[Metadata, str], object]] = [
            Metadata.integer,
            Metadata.number,
            Metadata.boolean,
            Metadata.string,
            Metadata.strings,
            Metadata.numbers,
            Metadata.integer_list,
        ]
        for key, value in checkpoint.metadata.items():
            assert not isinstance(value.data, Array) or value.data.length >= 0
            for getter in getters:
                with _expected():
                    getter(checkpoint.metadata, key)
        for tensor in checkpoint.tensors.values():
            with _expected():
                checkpoint.read(tensor, slice(0, 1))
                checkpoint.read(tensor)
        checkpoint.header_hash()
        architecture = find_architecture(checkpoint.architecture, str(path))
        plan = resolve(checkpoint, architecture)
        config = build_config(checkpoint, architecture)
        report = plan_report(plan, config_source=config.source, assumed=config.assumed)
        json.loads(json.dumps([report, dict(config.values)], allow_nan=False))


class _expected:  # noqa: N801 - used as a context manager function
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, GgufmapError)


def check(folder: Path, data: bytes) -> None:
    path = folder / "m.gguf"
    path.write_bytes(data)
    with _expected():
        everything(path)


@settings(max_examples=20000, deadline=None, database=None)
@given(
    bytes_=st.lists(mutation, min_size=1, max_size=4),
    runs=st.lists(long_mutation, max_size=1),
    cut=st.integers(0, len(SEED)),
)
@example(bytes_=[], runs=[], cut=0)
@example(bytes_=[], runs=[(4, b"\0\0\0\3")], cut=0)
def test_mutated_and_truncated_files_only_raise_ggufmap_errors(
    folder: Path, bytes_: list[tuple[int, int]], runs: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(SEED)
    for at, byte in bytes_:
        data[at] = byte
    for at, run in runs:
        data[at : at + len(run)] = run
    # Half of the examples keep their whole length: a cut hides what the mutation does.
    check(folder, bytes(data[: cut if cut % 2 else len(data)]))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    data=st.binary(max_size=400),
    start=st.sampled_from([b"", b"GGUF\3\0\0\0", gb.build(tensor_count=1, metadata_count=1)]),
)
def test_random_bytes_only_raise_ggufmap_errors(folder: Path, data: bytes, start: bytes) -> None:
    check(folder, start + data)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    values=st.dictionaries(
        st.sampled_from(
            [key for key in small.llama_metadata(1) if key.startswith("llama.")] + ["llama.rope.scaling.type"]
        ),
        st.one_of(
            st.tuples(st.just(gb.FLOAT32), st.floats(width=32)),
            st.tuples(st.just(gb.FLOAT64), st.floats()),
            st.tuples(st.just(gb.UINT64), st.integers(0, 2**64 - 1)),
            st.tuples(st.just(gb.INT32), st.integers(-(2**31), 2**31 - 1)),
            st.tuples(st.just(gb.UINT32), st.integers(0, 4)),
            st.tuples(st.just(gb.STRING), st.sampled_from(["yarn", "linear", "none", "longrope", ""])),
        ),
        min_size=1,
        max_size=4,
    ),
    factors=st.lists(st.floats(0, 100, width=32) | st.floats(width=32), min_size=8, max_size=8),
)
def test_absurd_values_in_a_sound_file_only_raise_ggufmap_errors(
    folder: Path, values: dict[str, tuple[int, object]], factors: list[float]
) -> None:
    freqs = small.tensor("rope_freqs.weight", 8, data=struct.pack("<8f", *factors))
    check(folder, small.encode(small.llama_metadata(1) | values, small.replaced(TENSORS, freqs)))


# Keys that rows and layouts of one family or another read: in a file of any family, with any value.
KEYS = sorted(
    {key.removeprefix("llama.") for key in small.llama_metadata() if key.startswith("llama.")}
    | {
        str(row.value)
        for name in known_architectures()
        for row in find_architecture(name, "m.gguf").config
        if row.source is Source.HEADER
    }
    | {
        "nextn_predict_layers",
        "leading_dense_block_count",
        "expert_count",
        "attention.indexer.types",
        "rope.scaling.type",
    }
    | {"attention.key_length", "attention.key_length_mla", "rope.dimension_count", "expert_gating_func"}
)

PLAUSIBLE = (
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "ssm.conv_kernel",
    "kda.head_dim",
)


@settings(max_examples=20000, deadline=None, database=None)
@given(
    name=st.sampled_from(known_architectures()),
    values=st.dictionaries(
        st.sampled_from(KEYS),
        st.one_of(
            st.tuples(st.just(gb.UINT32), st.integers(0, 70)),
            st.tuples(st.just(gb.INT32), st.integers(-3, 3)),
            st.tuples(st.just(gb.UINT64), st.integers(0, 2**64 - 1)),
            st.tuples(st.just(gb.FLOAT32), st.floats(width=32)),
            st.tuples(st.just(gb.BOOL), st.integers(0, 1)),
            st.tuples(st.just(gb.STRING), st.sampled_from(["yarn", "linear", "silu", ""])),
            st.tuples(st.just(gb.ARRAY), st.lists(st.integers(0, 9), max_size=4).map(lambda x: gb.Array(gb.INT32, x))),
            st.tuples(st.just(gb.ARRAY), st.just(gb.Array(gb.STRING, ["x"]))),
        ),
        max_size=12,
    ),
    data=st.data(),
)
def test_any_family_s_rows_over_any_header_only_raise_ggufmap_errors(
    folder: Path, name: str, values: dict[str, tuple[int, object]], data: st.DataObject
) -> None:
    rows = [rule for rule in find_architecture(name, "m.gguf").rules if rule.tensors]
    chosen = data.draw(st.lists(st.sampled_from(rows), max_size=12))
    shape = st.lists(st.integers(1, 8), max_size=4).map(tuple)
    names = dict.fromkeys(x.replace("{bid}", "0").replace("*", "x") for rule in chosen for x in rule.tensors)
    tensors = [small.tensor("token_embd.weight", 8, 4)]
    tensors += [small.tensor(x, *data.draw(shape)) for x in names if x != "token_embd.weight"]
    # Everything that the family asks for is there, so that what is absurd is met by what reads it.
    asked = [row.value for row in find_architecture(name, "m.gguf").config if row.source is Source.HEADER]
    metadata: small.Metadata = {f"{name}.{key}": (gb.UINT32, 4) for key in (*asked, *PLAUSIBLE)}
    metadata |= {key.replace("llama.", f"{name}."): value for key, value in small.llama_metadata(1).items()}
    metadata |= {f"{name}.{key}": value for key, value in values.items()}
    metadata["general.architecture"] = (gb.STRING, name)
    check(folder, small.encode(metadata, tensors))


def test_the_seed_itself_is_sound(folder: Path) -> None:
    path = folder / "seed.gguf"
    path.write_bytes(SEED)
    with open_checkpoint(path) as checkpoint:
        plan = resolve(checkpoint, find_architecture("llama", "seed.gguf"))
        assert plan.ok
        assert [x.tensor for x in plan.skipped] == ["rope_freqs.weight"]
