"""What a case of the corpus is: files, and what must become of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MAIN = "m.gguf"


@dataclass(frozen=True)
class Case:
    """One set of files. `stage` is how far ours reads: opening, then the tokenizer or the config.

    `ours` is None for a file that is read, else what the error must say. `llama_cpp` are the kinds of
    tests/test-gguf.cpp that it covers; `why` is our reason where llama.cpp reads a file that we refuse.
    """

    kind: str
    name: str
    files: Callable[[], Mapping[str, bytes]]
    ours: str | None
    stage: str = "open"
    llama_cpp: tuple[str, ...] = ()
    why: str = ""

    @property
    def first(self) -> str:
        """The file that is opened."""
        return next(iter(self.files()))


class Table(list[Case]):
    """Cases in a fixed order."""

    def put(
        self, kind: str, name: str, data: Callable[[], bytes | Mapping[str, bytes]], ours: str | None, **more: Any
    ) -> None:
        """Add a case: one file's bytes, or several files by name."""

        def files() -> Mapping[str, bytes]:
            found = data()
            return {MAIN: found} if isinstance(found, bytes) else found

        self.append(Case(kind, name, files, ours, **more))
