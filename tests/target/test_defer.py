"""Which vocabulary modules a draft brings itself."""

from __future__ import annotations

import pytest

from ggufmap.target.defer import Deferral, deferral_for

BLOCK = ["model.layers.5.eh_proj.weight", "model.layers.5.shared_head.norm.weight"]


@pytest.mark.parametrize(
    "head",
    [
        "model.layers.5.shared_head.head.weight",
        "model.layers.5.shared_head.head.qweight",
        "model.layers.5.transformer.shared_head.output.weight",  # Step 3.5
    ],
)
def test_a_head_in_the_file_is_the_draft_s_own(head: str) -> None:
    assert deferral_for([*BLOCK, head]) == Deferral(head=False, embedding=True)


def test_what_the_file_lacks_is_deferred() -> None:
    assert deferral_for(BLOCK) == Deferral(head=True, embedding=True)
    assert deferral_for([*BLOCK, "model.embed_tokens.weight"]) == Deferral(head=True, embedding=False)
