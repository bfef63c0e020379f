"""Stop tokens: the union of what the file declares and what its token texts say, each with its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import gguf_bytes as gb
from support.gguf_bytes import Array

from ggufmap.checkpoint import open_checkpoint
from ggufmap.errors import MetadataError
from ggufmap.modeldir.stop_tokens import StopToken, stop_token_ids

T = "tokenizer.ggml."
Stops = Callable[..., tuple[StopToken, ...]]


@pytest.fixture
def stops(tmp_path: Path) -> Stops:
    def read(tokens: list[Any], *, types: list[int] | None = None, **ids: Any) -> tuple[StopToken, ...]:
        entries: list[gb.Entry] = [
            (T + "model", gb.STRING, ids.pop("model", "gpt2")),
            (T + "tokens", gb.ARRAY, Array(gb.STRING, tokens)),
        ]
        if types is not None:
            entries.append((T + "token_type", gb.ARRAY, Array(gb.INT32, types)))
        for name, value in ids.items():
            kind = gb.ARRAY if isinstance(value, Array) else gb.STRING if isinstance(value, str) else gb.UINT32
            entries.append((f"{T}{name}_token_id", kind, value))
        path = tmp_path / "model.gguf"
        path.write_bytes(gb.build(entries))
        with open_checkpoint(path) as checkpoint:
            return stop_token_ids(checkpoint.metadata)

    return read


def test_declared_first_then_by_id(stops: Stops) -> None:
    tokens = ["<eos>", "a", "<end_of_turn>", "b", "<|eom_id|>", "c"]
    assert stops(tokens, eos=3, eot=2, eom=4) == (
        StopToken(3, "tokenizer.ggml.eos_token_id"),
        StopToken(2, "tokenizer.ggml.eot_token_id"),
        StopToken(4, "tokenizer.ggml.eom_token_id"),
        StopToken(0, "token text <eos>"),
    )


def test_gemma_stops_at_both_ends(gemma: Path) -> None:
    """Case H1: the file says one of the two ids, the original tokenizer the other."""
    with open_checkpoint(gemma) as checkpoint:
        found = stop_token_ids(checkpoint.metadata)
    assert found[0] == StopToken(1, "tokenizer.ggml.eos_token_id")
    assert StopToken(106, "token text <end_of_turn>") in found


def test_several_declared_ids_under_one_key(stops: Stops) -> None:
    found = stops(["a", "b", "c"], eos=Array(gb.UINT32, [2, 0]))
    assert [stop.id for stop in found] == [2, 0]


def test_infill_tokens_that_separate_files_stop(stops: Stops) -> None:
    tokens = ["<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "x"]
    assert [stop.id for stop in stops(tokens, eos=4)] == [4, 1, 2, 3]
    # A declared id replaces the search by text.
    assert [stop.id for stop in stops(tokens, eos=4, fim_pad=0)] == [4, 0, 2, 3]


def test_gpt_oss_goes_on_after_a_message(stops: Stops) -> None:
    tokens = ["<|return|>", "<|call|>", "<|end|>"]
    assert [stop.id for stop in stops(tokens, eos=0, eot=2)] == [0, 1]
    assert [stop.id for stop in stops(tokens[1:], eos=0)] == [0, 1]


def test_gemma4_has_an_ordinary_closing_tag(stops: Stops) -> None:
    assert [stop.id for stop in stops(["</s>", "<|tool_response>", "<eos>"], eos=2)] == [2, 1]
    assert [stop.id for stop in stops(["</s>", "<eos>"], eos=1)] == [1, 0]


@pytest.mark.parametrize(("model", "default"), [("llama", 2), ("gpt2", 11)])
def test_llama_cpp_default_only_where_it_is_a_control_token(model: str, default: int, stops: Stops) -> None:
    tokens = [f"t{i}" for i in range(20)]
    types = [1] * 20
    assert stops(tokens, types=types, model=model) == ()
    assert stops(tokens, model=model) == ()
    types[default] = 3
    assert [stop.id for stop in stops(tokens, types=types, model=model)] == [default]
    assert [stop.id for stop in stops(tokens, types=types, model=model, eos=5)] == [5]
    assert stops(tokens[:2], types=types[:2], model=model) == ()


@pytest.mark.parametrize("name", ["eos", "eot", "eom", "fim_pad", "fim_pre", "prefix"])
@pytest.mark.parametrize("value", [3, 2**32 - 1])
def test_an_id_outside_the_vocabulary_is_refused(name: str, value: int, stops: Stops) -> None:
    with pytest.raises(MetadataError, match=rf"{name}_token_id is {value}, but the vocabulary has 3 tokens"):
        stops(["a", "b", "c"], **{name: value})


def test_wrong_types_are_refused(stops: Stops, tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="eos_token_id should be an integer"):
        stops(["a"], eos="a")
    path = tmp_path / "empty.gguf"
    path.write_bytes(gb.build([("general.architecture", gb.STRING, "llama")]))
    with open_checkpoint(path) as checkpoint, pytest.raises(MetadataError, match=r"tokenizer\.ggml\.tokens is missing"):
        stop_token_ids(checkpoint.metadata)


def test_tokens_that_are_no_text_do_no_harm(stops: Stops) -> None:
    assert [stop.id for stop in stops([b"\xff\xfe", "", "<|im_end|>"], eos=1)] == [1, 2]
