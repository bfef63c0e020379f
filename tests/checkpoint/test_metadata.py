"""Typed getters: the right value, or an error that names key, expected and found type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import gguf_bytes as gb
from support.gguf_bytes import Array

from ggufmap.checkpoint import Metadata, open_checkpoint
from ggufmap.errors import MetadataError

ENTRIES: list[gb.Entry] = [
    ("int", gb.UINT32, 7),
    ("negative", gb.INT16, -7),
    ("epsilon", gb.FLOAT32, 1e-6),
    ("double", gb.FLOAT64, 1e-6),
    ("flag", gb.BOOL, 1),
    ("text", gb.STRING, "hello"),
    ("bytes", gb.STRING, b"ab\xffcd"),
    ("ints", gb.ARRAY, Array(gb.INT32, [1, -2])),
    ("flags", gb.ARRAY, Array(gb.BOOL, [1, 0])),
    ("floats", gb.ARRAY, Array(gb.FLOAT32, [0.5])),
    ("texts", gb.ARRAY, Array(gb.STRING, ["a", "b"])),
    ("broken", gb.ARRAY, Array(gb.STRING, ["a", b"\xc3"])),
    ("nested", gb.ARRAY, Array(gb.ARRAY, [Array(gb.UINT8, [1])])),
]


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metadata]:
    path = tmp_path_factory.mktemp("metadata") / "meta.gguf"
    path.write_bytes(gb.build(ENTRIES))
    with open_checkpoint(path) as checkpoint:
        yield checkpoint.metadata


@pytest.mark.parametrize(
    ("getter", "key", "expected"),
    [
        ("integer", "int", 7),
        ("integer", "negative", -7),
        ("number", "int", 7.0),
        ("number", "epsilon", 1e-6),  # not 9.999999974752427e-07
        ("number", "double", 1e-6),
        ("boolean", "flag", True),
        ("string", "text", "hello"),
        ("strings", "texts", ["a", "b"]),
        ("raw_strings", "broken", [b"a", b"\xc3"]),
        ("integer_list", "ints", [1, -2]),
        ("integer_list", "int", [7]),
        ("is_array", "ints", True),
        ("is_array", "int", False),
        ("is_array", "absent", False),
    ],
)
def test_value(metadata: Metadata, getter: str, key: str, expected: Any) -> None:
    found = getattr(metadata, getter)(key)
    assert found == expected
    assert type(found) is type(expected)


def test_numbers_include_bools(metadata: Metadata) -> None:
    assert metadata.numbers("flags").tolist() == [1, 0]
    assert metadata.numbers("floats").tolist() == [0.5]


@pytest.mark.parametrize(
    ("getter", "key", "wanted", "found"),
    [
        ("integer", "text", "an integer", "string"),
        ("integer", "epsilon", "an integer", "f32"),
        ("integer", "flag", "an integer", "bool"),
        ("integer", "ints", "an integer", "array of i32 [2]"),
        ("number", "text", "a number", "string"),
        ("number", "flag", "a number", "bool"),
        ("boolean", "int", "a bool", "u32"),
        ("string", "int", "a string", "u32"),
        ("string", "texts", "a string", "array of string [2]"),
        ("strings", "text", "an array of strings", "string"),
        ("strings", "ints", "an array of strings", "array of i32 [2]"),
        ("raw_strings", "nested", "an array of strings", "array of array [1]"),
        ("numbers", "texts", "an array of numbers", "array of string [2]"),
        ("numbers", "int", "an array of numbers", "u32"),
        ("numbers", "nested", "an array of numbers", "array of array [1]"),
        ("integer_list", "floats", "an array of integers", "array of f32 [1]"),
        ("integer_list", "flags", "an array of integers", "array of bool [2]"),
        ("integer_list", "text", "an integer", "string"),
    ],
)
def test_wrong_type_names_key_expected_and_found(
    metadata: Metadata, getter: str, key: str, wanted: str, found: str
) -> None:
    with pytest.raises(MetadataError) as e:
        getattr(metadata, getter)(key)
    assert f"metadata key {key} should be {wanted}, found {found}" in e.value.message
    assert "meta.gguf" in e.value.message


@pytest.mark.parametrize(
    "getter", ["integer", "number", "boolean", "string", "strings", "raw_strings", "numbers", "integer_list"]
)
def test_missing_key_is_named(metadata: Metadata, getter: str) -> None:
    with pytest.raises(MetadataError, match=r"meta\.gguf: metadata key absent\.key is missing"):
        getattr(metadata, getter)("absent.key")


def test_default_stands_in_for_a_missing_key_only(metadata: Metadata) -> None:
    assert metadata.integer("absent", 3) == 3
    assert metadata.number("absent", 0.5) == 0.5
    assert metadata.boolean("absent", False) is False
    assert metadata.string("absent", "") == ""
    assert metadata.integer("int", 3) == 7
    with pytest.raises(MetadataError, match="metadata key text should be an integer, found string"):
        metadata.integer("text", 3)


def test_text_that_is_no_utf8_says_where(metadata: Metadata) -> None:
    with pytest.raises(MetadataError, match=r"metadata key bytes is not valid UTF-8 \(byte 2\)"):
        metadata.string("bytes")
    with pytest.raises(MetadataError, match=r"metadata key broken\[1\] is not valid UTF-8 \(byte 0\)"):
        metadata.strings("broken")


def test_is_a_mapping_in_file_order(metadata: Metadata) -> None:
    assert list(metadata) == [entry[0] for entry in ENTRIES]  # type: ignore[index]
    assert len(metadata) == len(ENTRIES)
    assert "int" in metadata
    assert metadata["ints"].type_name == "array of i32 [2]"
