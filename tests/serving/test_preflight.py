"""Preflight opens, resolves and derives; what goes wrong on the way leaves nothing open."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gguf_bytes as gb
from support import small_models as small

from ggufmap.errors import GgufmapError
from ggufmap.serving.preflight import preflight


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_offline_says_all_that_rows_can_say(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 65}')
    found = preflight(small.write_llama(tmp_path / "m.gguf"), offline=True)
    with found.checkpoint:
        assert found.plan.ok and found.plan.trace is None
        assert found.architecture.model_class == "LlamaForCausalLM"
        assert found.config.values["hidden_size"] == 65
        assert [warning.code for warning in found.plan.warnings] == ["W103"]


@pytest.mark.parametrize(
    "change",
    [
        {"general.architecture": (gb.STRING, "nobody")},
        {"llama.block_count": (gb.UINT32, 10**9)},
        {"llama.rope.scaling.type": (gb.STRING, "longrope")},
    ],
)
def test_nothing_stays_open_after_a_failure(tmp_path: Path, change: small.Metadata) -> None:
    path = small.write_llama(tmp_path / "m.gguf", small.llama_metadata() | change)
    before = open_files()
    with pytest.raises(GgufmapError):
        preflight(path, offline=True)
    assert open_files() == before
