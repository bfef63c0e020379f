"""What an error of vLLM's says, in one line."""

from __future__ import annotations

_NO_WORDS = "For further information visit"  # pydantic's last line; the one before has the message


def last_words(text: str) -> str:
    """The last line of an error's text that says what went wrong; empty when there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_NO_WORDS)]
    return lines[-1].partition(" [type=")[0] if lines else ""
