"""gguf-py's tensor name aliases, as plain data: the tables that the converter itself looks names up in.

Only read: building a TensorNameMap would change the class-level tables for whoever comes next (see `stock.py`).
"""

from __future__ import annotations

from importlib.metadata import version


def tensor_aliases() -> dict[str, tuple[str, ...]]:
    """GGUF tensor name without suffix -> checkpoint modules known for it, over all families; `{bid}` on both sides."""
    import gguf
    from gguf.tensor_mapping import TensorNameMap

    found: dict[str, tuple[str, ...]] = {}
    for table in (TensorNameMap.mappings_cfg, TensorNameMap.block_mappings_cfg):
        for tensor, modules in table.items():
            name = gguf.TENSOR_NAMES[tensor]  # several tensors share one name (norms before and after)
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *modules)))
    return found


def aliases_version() -> str:
    """Whose aliases they are."""
    return f"gguf-py {version('gguf')}"
