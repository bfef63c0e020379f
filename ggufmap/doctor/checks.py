"""The checks, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ggufmap.doctor import device, mapping, resources, software
from ggufmap.doctor.facts import Facts
from ggufmap.doctor.finding import Finding

CHECKS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    software.versions,
    software.clashes,
    software.imports,
    software.plugin,
    software.decoders,
    device.gpus,
    device.compiled_for,
    mapping.mapping,
    device.attention,
    device.dtype,
    mapping.storage,
    mapping.draft,
    resources.disk,
    resources.memory,
    resources.shared_memory,
)


def diagnose(facts: Facts) -> list[Finding]:
    """What all checks find."""
    return [finding for check in CHECKS for finding in check(facts)]
