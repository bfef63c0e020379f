"""Which file a quantisation tag means, as a table."""

from __future__ import annotations

import pytest

from ggufmap.remote import tags

UNSLOTH = [
    "BF16/GLM-5-BF16-00001-of-00002.gguf",
    "BF16/GLM-5-BF16-00002-of-00002.gguf",
    "GLM-5-F16.gguf",
    "Q4_K_M/GLM-5-Q4_K_M-00001-of-00002.gguf",
    "Q4_K_M/GLM-5-Q4_K_M-00002-of-00002.gguf",
    "UD-Q4_K_M/GLM-5-UD-Q4_K_M.gguf",
    "UD-Q4_K_XL/GLM-5-UD-Q4_K_XL-00001-of-00010.gguf",
    *(f"UD-Q4_K_XL/GLM-5-UD-Q4_K_XL-{no:05d}-of-00010.gguf" for no in range(2, 11)),
    "GLM-5-IQ3_XXS.gguf",
    "GLM-5-Q8_0.gguf",
    "GLM-5-MXFP4_MOE.gguf",
    "imatrix_unsloth.gguf",
    "mmproj-BF16.gguf",
    "mmproj-F16.gguf",
    "mtp-GLM-5-Q4_K_M.gguf",
    "config.json",
    "README.md",
]
XL, M = "UD-Q4_K_XL/GLM-5-UD-Q4_K_XL-00001-of-00010.gguf", "Q4_K_M/GLM-5-Q4_K_M-00001-of-00002.gguf"
DOTS = ["Model.IQ4_NL.gguf", "Model.Q4_K.gguf", "Model.Q4_K_M.gguf", "Model.Q4_K_S.gguf", "Model.i1-Q4_K_L.gguf"]
FOLDERS = ["BF16/model-00001-of-00002.gguf", "BF16/model-00002-of-00002.gguf", "q8_0/model.gguf", "f16/model.gguf"]


@pytest.mark.parametrize(
    ("files", "tag", "found"),
    [
        (UNSLOTH, "Q4_K_M", [M]),  # not the UD one, nor the draft
        (UNSLOTH, "q4_k_m", [M]),
        (UNSLOTH, "q4-k-m", [M]),
        (UNSLOTH, "Q4.K.M", [M]),
        (UNSLOTH, "UD-Q4_K_M", ["UD-Q4_K_M/GLM-5-UD-Q4_K_M.gguf"]),
        (UNSLOTH, "ud_q4_k_m", ["UD-Q4_K_M/GLM-5-UD-Q4_K_M.gguf"]),
        (UNSLOTH, "UD-Q4_K_XL", [XL]),  # ten splits are one model
        (UNSLOTH, "Q4_K_XL", [XL]),  # a maker's prefix may be left out where that is unambiguous
        (UNSLOTH, "GLM-5-UD-Q4_K_XL", [XL]),
        (UNSLOTH, "F16", ["GLM-5-F16.gguf"]),  # bf16 is not f16, and projectors are no models
        (UNSLOTH, "bf16", ["BF16/GLM-5-BF16-00001-of-00002.gguf"]),
        (UNSLOTH, "16", []),
        (UNSLOTH, "Q4_K", []),
        (UNSLOTH, "Q4", []),
        (UNSLOTH, "Q8", []),
        (UNSLOTH, "K_M", []),
        (UNSLOTH, "M", []),
        (UNSLOTH, "XL", []),
        (UNSLOTH, "UD", []),
        (UNSLOTH, "5", []),
        (UNSLOTH, "GLM-5", []),
        (UNSLOTH, "iq3_xxs", ["GLM-5-IQ3_XXS.gguf"]),
        (UNSLOTH, "Q3_XXS", []),
        (UNSLOTH, "mxfp4", []),
        (UNSLOTH, "MXFP4-MOE", ["GLM-5-MXFP4_MOE.gguf"]),
        (DOTS, "Q4_K", ["Model.Q4_K.gguf"]),
        (DOTS, "Q4_K_M", ["Model.Q4_K_M.gguf"]),
        (DOTS, "Q4_K_L", ["Model.i1-Q4_K_L.gguf"]),
        (DOTS, "iq4-nl", ["Model.IQ4_NL.gguf"]),
        (DOTS, "Q4_NL", []),
        (FOLDERS, "bf16", ["BF16/model-00001-of-00002.gguf"]),
        (FOLDERS, "F16", ["f16/model.gguf"]),
        (FOLDERS, "Q8-0", ["q8_0/model.gguf"]),
        (["a/x-Q4_K_M.gguf", "b/y-Q4_K_M.gguf"], "Q4_K_M", ["a/x-Q4_K_M.gguf", "b/y-Q4_K_M.gguf"]),  # ambiguous
        (["x-Q4_0.gguf", "x-Q4_0-v2.gguf"], "q4_0", ["x-Q4_0-v2.gguf", "x-Q4_0.gguf"]),
        (["x-Q4_0.gguf", "x-Q4_0-v2.gguf"], "q4_0_v2", ["x-Q4_0-v2.gguf"]),
        (["x-Q4_0.gguf", "x-Q4_0_4_8.gguf"], "q4_0", ["x-Q4_0.gguf"]),
        (["Q4_K_M/x-Q8_0.gguf", "Q4_K_M/x-Q4_K_M.gguf"], "Q4_K_M", ["Q4_K_M/x-Q4_K_M.gguf"]),  # the name counts first
        (["from-f16-Q4_K_M.gguf"], "f16", []),  # what it was made from
        (["from-f16-Q4_K_M.gguf"], "q4_k_m", ["from-f16-Q4_K_M.gguf"]),
        (["plain.gguf"], "plain", ["plain.gguf"]),
        (["plain.gguf"], "pla", []),
        (["X-Q4_K_M.GGUF"], "Q4_K_M", ["X-Q4_K_M.GGUF"]),
        (["x.gguf"], "---", []),
    ],
)
def test_a_tag_means(files: list[str], tag: str, found: list[str]) -> None:
    assert tags.matching(tags.models(files), tag) == found


def test_models_are_counted_by_set_and_without_what_is_none() -> None:
    assert tags.models(UNSLOTH) == sorted(
        [
            "BF16/GLM-5-BF16-00001-of-00002.gguf", M, XL, "UD-Q4_K_M/GLM-5-UD-Q4_K_M.gguf",
            "GLM-5-F16.gguf", "GLM-5-IQ3_XXS.gguf", "GLM-5-MXFP4_MOE.gguf", "GLM-5-Q8_0.gguf",
        ]
    )  # fmt: skip
    assert tags.models(["a-00001-of-00002.gguf", "a-00001-of-00003.gguf"]) == [
        "a-00001-of-00002.gguf",
        "a-00001-of-00003.gguf",
    ]
    assert tags.models(["a.safetensors", "mmproj.gguf", "imatrix.gguf", "x.imatrix.gguf", "mtp-x.gguf"]) == []


def test_the_files_of_a_set() -> None:
    assert len(tags.set_of(XL, UNSLOTH)) == 10
    assert tags.set_of("GLM-5-F16.gguf", UNSLOTH) == ["GLM-5-F16.gguf"]


def test_projectors_are_those_of_the_folder_or_of_the_top() -> None:
    assert tags.projectors_of(XL, UNSLOTH) == ["mmproj-BF16.gguf", "mmproj-F16.gguf"]
    files = ["a/m.gguf", "a/mmproj-a.gguf", "mmproj.gguf", "b/m.gguf", "c/mmproj-c.gguf"]
    assert tags.projectors_of("a/m.gguf", files) == ["a/mmproj-a.gguf"]
    assert tags.projectors_of("b/m.gguf", files) == ["mmproj.gguf"]


@pytest.mark.parametrize(
    ("file", "label"),
    [
        (XL, "UD-Q4_K_XL"),
        ("Model.i1-Q4_K_L.gguf", "i1-Q4_K_L"),
        ("f16/model.gguf", "f16"),
        ("plain.gguf", "plain.gguf"),
    ],
)
def test_how_a_file_is_called_is_a_tag_that_finds_it(file: str, label: str) -> None:
    assert tags.label(file) == label
    assert tags.matching([file], label) == [file] or label == file
