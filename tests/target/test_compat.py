"""What is asked of vLLM in one place, since it differs between versions."""

from __future__ import annotations

from collections import namedtuple
from enum import Enum
from typing import Any

from ggufmap.target import compat

Candidate = namedtuple("Candidate", "backend_class backend priority")


class Backend(Enum):
    A = "a"
    B = "b"


class Platform:
    """A platform that has one backend and refuses the other."""

    @staticmethod
    def get_device_capability() -> tuple[int, int]:
        return (10, 0)

    @staticmethod
    def get_valid_backends(device_capability: Any, attn_selector_config: Any, num_heads: int | None = None) -> Any:
        assert (device_capability, num_heads) == ((10, 0), 64)
        return [Candidate(None, Backend.A, 0)], {
            Backend.B: (1, ["sparse not supported", "kv_cache_dtype not supported"])
        }


def test_attention_candidates_by_name_with_the_reasons_against_the_others() -> None:
    reasons = {"B": "sparse not supported; kv_cache_dtype not supported"}
    assert compat.attention_candidates(Platform, None, 64) == (["A"], reasons)


def test_a_platform_without_a_list_has_no_candidates() -> None:
    assert compat.attention_candidates(object(), None, 64) == ([], {})


def test_an_mla_prefill_backend_that_does_not_import_is_stood_in_for() -> None:
    def broken(_: object) -> None:
        raise ImportError("cannot import name 'compile_flash_attn_varlen_func_from_specs'")

    stand_in = compat._or_nothing(broken)(None)
    assert stand_in(1, dtype=2) is not None
    assert compat._or_nothing(lambda _: dict)(None) is dict
