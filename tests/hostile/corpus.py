"""Every kind of malformed file that is known, built on demand, with what must become of it."""

from __future__ import annotations

from pathlib import Path

from hostile import headers, models, tables
from hostile.case import Case

CASES: tuple[Case, ...] = (*headers.CASES, *tables.CASES, *models.CASES)

_LLAMA_CPP = {
    "HEADER": "BAD_MAGIC BAD_VERSION_0 BAD_VERSION_1 BAD_VERSION_FUTURE BAD_N_KV BAD_N_TENSORS EMPTY",
    "KV": "BAD_KEY_SIZE EMPTY_KEY BAD_TYPE DUPLICATE_KEY BAD_ALIGN WRONG_TYPE_ALIGN SUCCESS",
    "TENSORS": "BAD_NAME_SIZE BAD_N_DIMS BAD_SHAPE ZERO_DIM NE_TOO_BIG NBYTES_TOO_BIG BAD_TYPE BAD_OFFSET "
    "DUPLICATE_NAME BAD_ALIGN INCONSISTENT_ALIGN SUCCESS CUSTOM_ALIGN",
    "DATA": "NOT_ENOUGH_DATA BAD_ALIGN INCONSISTENT_ALIGN MEM_SIZE_OVERFLOW SUCCESS CUSTOM_ALIGN",
}

LLAMA_CPP = {f"{part}_{kind}" for part, kinds in _LLAMA_CPP.items() for kind in kinds.split()}
"""The kinds of files in llama.cpp's tests/test-gguf.cpp."""


def write(case: Case, folder: Path) -> Path:
    """Write the files of `case`; the path of the one to open."""
    files = case.files()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder / next(iter(files))
