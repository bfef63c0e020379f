"""Which chat template the server gets: the file's own only where nothing in it asks for a person's decision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ggufmap.checkpoint import Metadata
from ggufmap.errors import UsageError, plural
from ggufmap.modeldir.template import KEY, read_templates

OPTION = "--chat-template"

_REFUSAL = (
    "chat is off: the chat template of the GGUF file has findings (ggufmap audit); start with --chat-template FILE"
)


def chat_arguments(
    metadata: Metadata, extra: Sequence[str], *, given: Path | None, own: bool, force: bool
) -> tuple[tuple[str, ...], str]:
    """vLLM's option for the template, and what to say about it; both empty where vLLM takes the model directory's.

    `given` is the user's template; with `own` false the model directory does not have the file's. A template with
    findings is replaced by one that refuses every chat with the reason, unless `force`: completions still work.
    Raises UsageError when `given` is no file.
    """
    if given is not None:
        if not given.is_file():
            raise UsageError(f"{given}: no such file", hint="--chat-template takes a file with a Jinja template.")
        return (OPTION, str(given)), ""
    if not own or any(argument.split("=")[0].replace("_", "-") == OPTION for argument in extra):
        return (), ""
    refused = [x for template in read_templates(metadata) if template.key == KEY for x in template.refused]
    if not refused:
        return (), ""
    first = f"line {refused[0].line}: {refused[0].kind}: {refused[0].text}"
    what = f"the file's chat template has {plural(len(refused), 'finding')} ({first})"
    if force:
        return (), f"--force: {what}"
    say = f"Chat is off: {what}. See ggufmap audit; --chat-template FILE gives another, --force uses it."
    return (OPTION, f"{{{{ raise_exception({_REFUSAL!r}) }}}}"), say
