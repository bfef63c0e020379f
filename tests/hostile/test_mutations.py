"""A short, seeded fuzz of each target; `scripts/fuzz` is the long one."""

from __future__ import annotations

import time
from itertools import islice

import pytest
from hostile.mutate import mutations
from hostile.targets import TARGETS

from ggufmap.errors import GgufmapError

FILES = {"header": 3000, "splits": 300, "tokenizer": 1500, "config": 300, "template": 1500}
SLOWEST = 5.0


@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_errors_escape(name: str) -> None:
    target = TARGETS[name]
    for data in islice(mutations(target.seeds(), seed=20261130), FILES[name]):
        started = time.process_time()
        target.check(data)
        assert time.process_time() - started < SLOWEST, data[:200]


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_reach_the_end(name: str) -> None:
    """A target that refuses all its seeds at the door tests nothing behind it."""
    target = TARGETS[name]
    refused = 0
    for data in target.seeds():
        try:
            target.run(data)
        except GgufmapError:
            refused += 1
    # A header with 4 for every number makes no sense to some families.
    assert refused <= (0.8 * len(target.seeds()) if name == "config" else 0)


def test_mutations_are_the_same_every_time_and_differ() -> None:
    first, again = (list(islice(mutations([b"abc" * 9], seed=1), 50)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 30
