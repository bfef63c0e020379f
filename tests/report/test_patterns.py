"""Names for people."""

from __future__ import annotations

import pytest

from ggufmap.report.patterns import counted, pattern, printable, size


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.3.attn_q.weight", "blk.*.attn_q.weight"),
        ("model.layers.12.mlp.experts.7.w", "model.layers.*.mlp.experts.*.w"),
        ("output.weight", "output.weight"),
        ("w13_weight", "w13_weight"),
        ("layers.5", "layers.*"),
        ("5.layers", "5.layers"),
        ("a.5x.b", "a.5x.b"),
        ("", ""),
    ],
)
def test_numeric_segments_become_stars(name: str, expected: str) -> None:
    assert pattern(name) == expected


def test_values_are_counted_most_frequent_first() -> None:
    assert counted(["Q4_K", "Q4_K"]) == "Q4_K"
    assert counted(["Q6_K", "Q4_K", "Q4_K"]) == "Q4_K 2 + Q6_K 1"


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (253_113_024, "253 MB"),
        (402 * 10**9, "402 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_sizes_in_decimal_units(nbytes: int, expected: str) -> None:
    assert size(nbytes) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blk.0 grüße 你好 🦙 [red]", "blk.0 grüße 你好 🦙 [red]"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\rd\0", r"a\nb\tc\rd\x00"),
        ("\u202eevil\u200b", r"\u202eevil\u200b"),
        ("\x9b31m\x07", r"\x9b31m\x07"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_could_move_the_cursor_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::error::x", r"\x3a:error::x"),
        ("  ::set-output name=a::b", r"  \x3a:set-output name=a::b"),
        ("x" * 160 + "::stop-commands::y", "x" * 160 + r"\x3a:stop-commands::y"),
        ("::ADD-mask::::error::", r"\x3a:ADD-mask::\x3a:error::"),
        ("a ##[error]b", r"a \x23#[error]b"),
        ("http://[::1]:8000, ::1, ::ffff:127.0.0.1", "http://[::1]:8000, ::1, ::ffff:127.0.0.1"),
        ("aten::index_copy_, torch::nn", "aten::index_copy_, torch::nn"),
        ("## [title](x) #1", "## [title](x) #1"),
    ],
)
def test_what_would_command_the_runner_of_a_workflow_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected
