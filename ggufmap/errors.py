"""One base error and a handful of kinds; each carries the process exit code of its kind."""

from __future__ import annotations


class GgufmapError(Exception):
    """Something went wrong that a person can act on.

    `message` says what and where (file, tensor or key, expected and found); `hint` says what to do.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class FileError(GgufmapError):
    """The file cannot be read, is not a GGUF, or breaks the format's rules."""


class MetadataError(GgufmapError):
    """A metadata key is missing or has another type than its meaning needs."""


class UsageError(GgufmapError):
    """The command line or the combination of inputs is wrong."""


class UnsupportedError(GgufmapError):
    """A well-formed file needs something that is not known here (architecture, tokenizer, type)."""


class UnknownArchitectureError(UnsupportedError):
    """The family of the file has no rows."""


class MappingError(GgufmapError):
    """The mapping has problems, or a load did not fill the model as planned."""

    exit_code = 1


class PatchError(GgufmapError):
    """A patch does not fit what is installed, or is malformed; nothing was written."""


class MissingDependencyError(GgufmapError):
    """This environment cannot do what was asked (vLLM absent or too old, no such device)."""

    exit_code = 3


def plural(number: int, noun: str) -> str:
    """`1 problem`, `2 problems`: for messages."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
