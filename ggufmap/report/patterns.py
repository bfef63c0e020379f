"""Names for people: grouped by pattern (`blk.3.attn_q.weight` is one of `blk.*.attn_q.weight`), safe to print."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
# What GitHub's runner obeys where a line begins with it, and a folded line may begin anywhere; the older form anywhere
# in a line (actions/runner, src/Runner.Common/ActionCommand.cs).
_COMMAND = re.compile(r":(?=:[A-Za-z-]+(?: |::))|#(?=#\[)")


def pattern(name: str) -> str:
    """`name` with every numeric segment replaced by `*`."""
    return _NUMBER.sub("*", name)


def printable(text: str) -> str:
    """`text` with control and other unprintable characters escaped, and what begins a command in a workflow's log.

    A name must neither move the cursor nor command the runner.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _COMMAND.sub(lambda found: f"\\x{ord(found[0]):02x}", shown)


def counted(values: Iterable[str]) -> str:
    """`Q4_K` for one distinct value, `Q4_K 10 + Q6_K 8` for several, most frequent first."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    return " + ".join(f"{value} {count}" for value, count in counts.most_common())


def size(nbytes: int) -> str:
    """Bytes for people, in decimal units."""
    amount = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1000
    raise AssertionError  # the loop always returns
