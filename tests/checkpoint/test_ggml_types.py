"""The ggml type table against gguf-py's and against llama.cpp's, and the ids that nobody can read."""

from __future__ import annotations

import gguf
import libgguf
import pytest
from gguf.constants import GGML_QUANT_SIZES
from support import ggml

from ggufmap.checkpoint.ggml_types import TYPES, ggml_type
from ggufmap.errors import UnsupportedError

RETIRED = [4, 5, 31, 32, 33, 36, 37, 38]
COUNT = 43  # GGML_TYPE_COUNT
# gguf-py 0.19 says 40 bytes (two floats). ggml-common.h has two halves and 32 bytes, and so has libgguf.
WRONG_IN_GGUF_PY = {"Q8_1"}


@pytest.mark.parametrize("kind", GGML_QUANT_SIZES, ids=lambda kind: kind.name)
def test_sizes_are_those_of_gguf_py(kind: gguf.GGMLQuantizationType) -> None:
    ours = ggml_type(kind.value)
    assert ours.name == kind.name
    assert ours.problem is None
    if kind.name in WRONG_IN_GGUF_PY:
        assert ours.bytes == libgguf.type_size(kind.value)
    else:
        assert (ours.block, ours.bytes) == GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("id", range(COUNT))
def test_sizes_are_those_of_llama_cpp(id: int) -> None:
    """Of the compiled library: the newest types are not in gguf-py's releases yet."""
    assert (ggml_type(id).block, ggml_type(id).bytes) == ggml.sizes(id)
    assert (ggml_type(id).problem is None) == (ggml.sizes(id) != (0, 0))


def test_usable_types_are_those_that_llama_cpp_has() -> None:
    assert {type.id for type in TYPES.values() if type.problem is None} == set(range(COUNT)) - set(RETIRED)


@pytest.mark.parametrize("id", RETIRED)
def test_retired_types_are_named_and_refused_on_use(id: int) -> None:
    type = ggml_type(id)
    assert not type.name.startswith("unknown")
    with pytest.raises(UnsupportedError, match=rf"tensor a\.weight has ggml type {type.name} \(id {id}\).*removed"):
        type.require_usable("a.weight")


@pytest.mark.parametrize(("id", "name"), [(133, "Q6_0"), (153, "IQ2_KT"), (156, "IQ3_KS")])
def test_types_of_ik_llama_are_named_and_refused_on_use(id: int, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"type {name} \(id {id}\): a type that only ik_llama\.cpp has"):
        ggml_type(id).require_usable("a.weight")


@pytest.mark.parametrize("id", [43, 232, 4_294_967_295])
def test_unknown_types_are_listed_with_their_id_and_refused_on_use(id: int) -> None:
    type = ggml_type(id)
    assert type.name == f"unknown_{id}"
    with pytest.raises(UnsupportedError, match=rf"\(id {id}\).*a llama\.cpp newer than this table, or .*ik_llama"):
        type.require_usable("a.weight")


def test_row_bytes_count_whole_blocks() -> None:
    assert ggml_type(12).row_bytes(512) == 288  # Q4_K
    assert ggml_type(0).row_bytes(3) == 12
    assert ggml_type(30).row_bytes(3) == 6
