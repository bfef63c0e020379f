"""Flags that vLLM reads from the draft's config: written, seen to arrive, and passed by hand where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from families.tracing import Tracer
from families.variants import config, planned
from support.converter import TinyFactory

from ggufmap.archs.base import JsonValue
from ggufmap.modeldir.config import ModelConfig
from ggufmap.serving.preflight import Preflight, lost_flags, preflight
from ggufmap.serving.serve import speculative_config
from ggufmap.target import client

FLAG = "index_share_for_mtp_iteration"
CLASSES = {"glm52": "DeepseekV32MTPModel", "glm5": "DeepseekV32MTPModel", "glm53_flash": "Glm5NextMTPModel"}
MTP: dict[str, JsonValue] = {"method": "mtp", "num_speculative_tokens": 1}


def draft_config(tracer: Tracer, made: ModelConfig, speculative: dict[str, JsonValue], *, lose: bool) -> object:
    """(draft's class, the flag on its config), as vLLM's own SpeculativeConfig makes them."""
    request = {"config": dict(made.values), "speculative": speculative, "flags": [FLAG], "lose": lose}
    answer = tracer.ask("draft_config", request)
    return (*answer["architectures"], answer["flags"][FLAG])


@pytest.mark.parametrize("name", CLASSES)
def test_the_flag_is_written_where_the_class_looks_for_it(tiny: TinyFactory, name: str) -> None:
    made = config(tiny(name)[1])
    assert made.text[FLAG] is True
    assert made.assumed[FLAG] is True  # no header has it
    assert (FLAG in made.values) == ("text_config" not in made.values)


@pytest.mark.parametrize("name", CLASSES)
def test_vllm_carries_the_flag_to_the_draft(tiny: TinyFactory, tracer: Tracer, name: str) -> None:
    made = config(tiny(name)[1])
    assert draft_config(tracer, made, MTP, lose=False) == (CLASSES[name], True)


@pytest.mark.parametrize("name", CLASSES)
def test_an_explicit_flag_reaches_a_draft_whose_config_lost_it(tiny: TinyFactory, tracer: Tracer, name: str) -> None:
    made = config(tiny(name)[1])
    assert draft_config(tracer, made, MTP, lose=True) != (CLASSES[name], True)
    assert draft_config(tracer, made, {**MTP, FLAG: True}, lose=True) == (CLASSES[name], True)


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_is_passed_where_nothing_is_lost(tiny: TinyFactory, tracer: Tracer, name: str) -> None:
    found = tracer(tiny(name)[1])
    assert found.plan.ok, found.plan.problems()
    assert lost_flags(found.plan, found.config) == {}
    assert speculative_config(found, []) == MTP
    assert "W113" not in [warning.code for warning in found.plan.warnings]


@pytest.mark.parametrize("name", ["glm52", "glm53_flash"])
def test_a_vllm_that_loses_the_flag_gets_it_explicitly(
    tiny: TinyFactory, tracer: Tracer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(client, "_ask", lambda request, _: tracer.ask("trace_without_promotion", request))
    found = preflight(tiny(name)[1])
    found.checkpoint.close()
    assert found.plan.ok, found.plan.problems()
    assert found.plan.trace is not None and found.plan.trace.draft_flags == {FLAG: None}
    assert lost_flags(found.plan, found.config) == {FLAG: True}
    passed = speculative_config(found, [])
    assert passed == {**MTP, FLAG: True}
    (warning,) = [w.message for w in found.plan.warnings if w.code == "W113"]
    assert f"loses {FLAG}=True" in warning and "serve passes it explicitly" in warning
    assert draft_config(tracer, found.config, passed, lose=True) == (CLASSES[name], True)


def test_a_user_s_own_speculative_config_is_left_alone(tiny: TinyFactory) -> None:
    found: Preflight = preflight(tiny("glm52")[1], offline=True)
    found.checkpoint.close()
    assert speculative_config(found, ["--speculative-config", '{"method": "ngram"}']) is None
    assert speculative_config(found, ["-sc={}"]) is None
    assert speculative_config(found, [], enabled=False) is None
    assert speculative_config(found, [], tokens=3) == {**MTP, "num_speculative_tokens": 3}


@pytest.mark.parametrize("name", ["glm46", "deepseek_v3", "deepseek_v32"])
def test_families_without_the_flag_do_not_get_it(tiny: TinyFactory, name: str) -> None:
    assert FLAG not in config(tiny(name)[1]).text
    assert planned(Path(tiny(name)[1])).model.draft_blocks == 1
