"""One base error and a handful of kinds; each carries the process exit code of its kind."""

from __future__ import annotations

WRITABLE = "Check the disk's free space and the folder's permissions, or name another folder."
"""The hint where a file cannot be written."""


class GgufmapError(Exception):
    """Something went wrong that a person can act on.

    `message` says what and where (file, tensor or key, expected and found); `hint` says what to do.
    """

    exit_code = 2
    usual_hint: str | None = None
    """What helps in most cases of the kind."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.usual_hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class FileError(GgufmapError):
    """The file cannot be read, is not a GGUF, or breaks the format's rules."""

    usual_hint = "The file is damaged or was made by a faulty tool: download it again, or convert the model again."


class MetadataError(GgufmapError):
    """A metadata key is missing or has another type than its meaning needs."""

    usual_hint = "The header is not what llama.cpp writes for this family: convert the model again with a current one."


class UsageError(GgufmapError):
    """The command line or the combination of inputs is wrong."""


class UnsupportedError(GgufmapError):
    """A well-formed file needs something that is not known here (architecture, tokenizer, type)."""

    usual_hint = "Take another file of the model, or a later ggufmap."


class UnknownArchitectureError(UnsupportedError):
    """The family of the file has no rows."""


class MappingError(GgufmapError):
    """The mapping has problems, or a load did not fill the model as planned."""

    exit_code = 1
    usual_hint = "`ggufmap audit MODEL` lists what does not fit."


class PatchError(GgufmapError):
    """A patch does not fit what is installed, or is malformed; nothing was written."""

    usual_hint = "Take a patch that was made for the installed version, or install the package again."


class MissingDependencyError(GgufmapError):
    """This environment cannot do what was asked (vLLM absent or too old, no such device)."""

    exit_code = 3


def plural(number: int, noun: str) -> str:
    """`1 problem`, `2 problems`: for messages."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
