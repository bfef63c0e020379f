"""The ggml type table against gguf-py's, and the ids that nobody can read."""

from __future__ import annotations

import gguf
import libgguf
import pytest
from gguf.constants import GGML_QUANT_SIZES

from ggufmap.checkpoint.ggml_types import TYPES, ggml_type
from ggufmap.errors import UnsupportedError

RETIRED = [4, 5, 31, 32, 33, 36, 37, 38]
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


def test_no_usable_type_is_unknown_to_gguf_py() -> None:
    usable = {type.id for type in TYPES.values() if type.problem is None}
    assert usable == {kind.value for kind in GGML_QUANT_SIZES}


@pytest.mark.parametrize("id", RETIRED)
def test_retired_types_are_named_and_refused_on_use(id: int) -> None:
    type = ggml_type(id)
    assert not type.name.startswith("unknown")
    with pytest.raises(UnsupportedError, match=rf"tensor a\.weight has ggml type {type.name} \(id {id}\).*removed"):
        type.require_usable("a.weight")


@pytest.mark.parametrize("id", [42, 153, 156, 4_294_967_295])
def test_unknown_types_are_listed_with_their_id_and_refused_on_use(id: int) -> None:
    type = ggml_type(id)
    assert type.name == f"unknown_{id}"
    with pytest.raises(UnsupportedError, match=rf"\(id {id}\).*ik_llama"):
        type.require_usable("a.weight")


def test_row_bytes_count_whole_blocks() -> None:
    assert ggml_type(12).row_bytes(512) == 288  # Q4_K
    assert ggml_type(0).row_bytes(3) == 12
    assert ggml_type(30).row_bytes(3) == 6
