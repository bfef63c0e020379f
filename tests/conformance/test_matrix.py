"""The conformance matrix, the parts that take seconds: values, config, quantised values.

`scripts/conformance` runs the whole of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import conformance

CASES = conformance.all_cases()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.mark.parametrize("name", CASES)
def test_tensors_and_config_come_back(name: str, root: Path) -> None:
    made = conformance.make(CASES[name], root)
    assert conformance.check_values(made) == []
    assert conformance.check_config(made) == []
    assert conformance.check_quantised(made, root / "quantised") == []


@pytest.mark.parametrize("name", CASES)
def test_tensors_come_back_from_bf16(name: str, root: Path) -> None:
    made = conformance.make(CASES[name], root, "bfloat16")
    assert conformance.check_values(made) == []
