"""scripts/synthesize.py, which is a script and no package: real shapes of large models, a few MB on disk."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from support.assets import ROOT


def generator() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("synthesize", ROOT / "scripts" / "synthesize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["synthesize"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module
