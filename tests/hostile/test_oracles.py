"""Other readers on the same corpus: where llama.cpp reads what we refuse, the corpus says why."""

from __future__ import annotations

from hostile.corpus import CASES
from hostile.oracles import answers, unexplained


def test_what_llama_cpp_reads_and_we_refuse_has_a_reason() -> None:
    found = answers("llama.cpp")
    assert unexplained(found) == []
    by_name = {case.name: answer["outcome"] for case, answer in zip(CASES, found, strict=True)}
    assert by_name["good tensors"] == "read"
    assert by_name["a good BPE vocabulary"] == "read"
    assert by_name["a good SentencePiece vocabulary"] == "read"
    assert by_name["a whole set"] == "read"
    assert by_name["magic reversed"] == "refused"


def test_gguf_py_is_no_reader_for_such_files() -> None:
    """Why its reader is not used here; when this fails, a newer gguf-py has learnt."""
    expected = {"good tensors": "read", "array of 2^62 bytes": "hang", "string of 2^63": "read", "overlap": "read"}
    few = [case for case in CASES if case.name in expected]
    found = {case.name: answer["outcome"] for case, answer in zip(few, answers("gguf-py", few), strict=True)}
    assert found == expected
