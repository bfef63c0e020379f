"""Small repairs of installed packages, for people who stay on stock loaders: verified diffs, applied and taken back.

`patchfile` reads the diffs, `environment` finds what they are for, `state` compares, `change` writes.
"""

from ggufmap.patching.change import apply, revert
from ggufmap.patching.environment import search_path
from ggufmap.patching.patchfile import Patch, load_patches
from ggufmap.patching.state import Finding, State, inspect

__all__ = ["Finding", "Patch", "State", "apply", "inspect", "load_patches", "revert", "search_path"]
