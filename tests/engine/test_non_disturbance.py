"""A vLLM that serves something else does not notice that ggufmap is installed, healthy or broken."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from engine import harness
from support.converter import Checkpoints

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

# Each in a process of its own: what is broken in our plugin, or the plugin shut out.
CASES: dict[str, tuple[str | None, dict[str, str]]] = {
    "off": (None, {"VLLM_PLUGINS": ""}),
    "healthy": (None, {}),
    "loader does not import": ("loader", {}),
    "gguf and libgguf do not import": ("gguf", {}),
    "register_model_loader raises": ("register", {}),
    "plugin does not import": ("plugin", {}),
}
REGISTERED = {"healthy", "gguf and libgguf do not import"}
OURS = {"ggufmap", "ggufmap.serving", "ggufmap.serving.plugin", "ggufmap.serving.loader"}

_answers: dict[str, dict[str, Any]] = {}


@pytest.fixture
def run(checkpoints: Checkpoints) -> Any:
    """The answer of a case: an ordinary safetensors model served by vLLM's own loader."""

    def answer(case: str) -> dict[str, Any]:
        if case not in _answers:
            sabotage, changes = CASES[case]
            jobs = [harness.job(checkpoints.checkpoint("llama").folder, "auto")]
            _answers[case] = harness.run_worker("vllm_worker", {"jobs": jobs, "sabotage": sabotage}, **changes)
        return _answers[case]

    return answer


@pytest.mark.parametrize("case", [case for case in CASES if case != "off"])
def test_output_is_the_same(run: Any, case: str) -> None:
    off, result = run("off"), run(case)
    assert len(set(chain(*off["results"][0]["tokens"]))) >= 10
    assert result["results"][0]["tokens"] == off["results"][0]["tokens"]
    assert result["results"][0]["logprobs"] == off["results"][0]["logprobs"]
    assert ("ggufmap" in result["plugin"]["formats"]) == (case in REGISTERED)
    if case not in REGISTERED:  # it says so, once, and goes on
        assert "ggufmap" in result["log"] and "on purpose" in result["log"]


def test_nothing_but_the_loader_is_imported(run: Any, record_property: pytest.RecordProperty) -> None:
    off, healthy = run("off"), run("healthy")
    record_property("plugin_seconds", healthy["plugin"]["seconds"])
    more = set(healthy["plugin"]["modules"]) - set(off["plugin"]["modules"])
    # VLLM_PLUGINS="" shuts out the plugins that vLLM itself brings, too.
    assert {name for name in more if not name.startswith("vllm.")} == OURS
    # And nothing more at the end of the process, when a model was loaded and has answered.
    loaded = set(healthy["modules"])
    assert {name for name in loaded if name.split(".")[0] == "ggufmap"} == OURS
    assert not {name for name in loaded if name.split(".")[0] in ("gguf", "libgguf")}


def test_other_load_formats_are_untouched(run: Any) -> None:
    assert set(run("healthy")["plugin"]["formats"]) - set(run("off")["plugin"]["formats"]) == {"ggufmap"}
