"""What stands in the chat templates of a file. A template is a program: it is parsed here, never run.

vLLM renders the one under `tokenizer.chat_template` in a sandbox. A sandbox keeps it from the machine; what it puts
into a prompt, and when, is what these findings are about.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ggufmap.checkpoint.metadata import Metadata
from ggufmap.errors import MetadataError
from ggufmap.modeldir.template_work import endless_work, walk

if TYPE_CHECKING:
    from jinja2 import nodes

KEY = "tokenizer.chat_template"
"""The template that vLLM gets; `tokenizer.chat_template.NAME` are others, for readers that ask for them."""

_MAX_BYTES = 256 << 10
"""Nothing larger is parsed; the largest in use have 20 kB."""

_LARGE_NUMBER = 100_000
_SENTENCE_WORDS = 6
_HOPS = 8
_SHOWN = 100

_URL = re.compile(r"(?:https?|ftp|data|file)://|\bwww\.", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{64,}")
_DUNDER = re.compile(r"__\w+__")
_WORD = re.compile(r"[^\W\d_]{3,}")
# Every repetition that can fail is bounded: a template must not make its own inspection slow.
_SENTENCE = re.compile(rf"(?:[^\W\d_]{{1,40}}[,;:]? {{1,3}}){{{_SENTENCE_WORDS - 1}}}[^\W\d_]")
_SPECIAL = re.compile(r"<[|｜]|[|｜]>")
_MARKUP = re.compile(r"</?\w{0,40}>?|\[[^\[\]]{0,80}\]|\[/?\w{0,40}|/\w{1,40}")
"""With special tokens: tags and switches, which ordinary text does not have."""

_CONTENT = ("content", "text")
_PARTS = ("text", "image", "image_url", "video", "video_url", "audio", "audio_url", "input_audio", "file", "type")
_PART_KEYS = ("value", "parts", "blocks")
"""With the kinds of the parts of a message: a template asks which one it has."""

_STRING_TESTS = ("startswith", "endswith", "find", "index", "count", "split", "rsplit", "partition", "replace")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing in a template that a person should see. With `refused`, the template is not used unless told so."""

    kind: str
    line: int
    text: str
    refused: bool = True


@dataclass(frozen=True, slots=True)
class Template:
    """A template of the file: its key, SHA-256 and size of its bytes, and what was found."""

    key: str
    sha256: str
    bytes: int
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> tuple[Finding, ...]:
        """The findings for which it is not used unless told so."""
        return tuple(finding for finding in self.findings if finding.refused)

    def report(self) -> dict[str, Any]:
        """The template's entry in the JSON report."""
        return asdict(self)


def read_templates(metadata: Metadata) -> tuple[Template, ...]:
    """Every chat template of the header, the one in use first."""
    keys = sorted(key for key in metadata if key == KEY or key.startswith(f"{KEY}."))
    found = []
    for key in keys:
        try:
            text = metadata.string(key)
        except MetadataError as e:
            found.append(Template(key, "", 0, (Finding("unreadable", 0, e.message),)))
            continue
        raw = text.encode()
        found.append(Template(key, hashlib.sha256(raw).hexdigest(), len(raw), inspect_template(text)))
    return tuple(found)


def inspect_template(text: str) -> tuple[Finding, ...]:
    """What stands in one template, by line. Never raises for any text."""
    if len(text.encode()) > _MAX_BYTES:
        return (Finding("size", 0, f"{len(text.encode())} bytes; more than {_MAX_BYTES} are not inspected"),)
    from jinja2 import TemplateError

    try:
        tree = _parse(text)
        found = [*_dangers(tree), *_triggers(tree)]
        found += [Finding("work", line, what) for line, what in endless_work(tree)]
    except TemplateError as e:
        return (Finding("syntax", getattr(e, "lineno", 0) or 0, _short(str(e))),)
    except (RecursionError, MemoryError, ValueError, OverflowError) as e:
        return (Finding("syntax", 0, f"cannot be parsed: {type(e).__name__}"),)
    return tuple(sorted(dict.fromkeys(found), key=lambda finding: (not finding.refused, finding.line)))


def _parse(text: str) -> nodes.Template:
    """The syntax tree, with the extensions that transformers gives to templates."""
    from jinja2 import Environment
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """`{% generation %}`: only its body matters here."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]).parse(text)


def _dangers(tree: nodes.Node) -> Iterator[Finding]:
    """Ways out of a sandbox, other files, hidden or harmful texts, work without end."""
    from jinja2 import nodes

    for node in walk(tree):
        line = node.lineno or 0
        name = _accessed(node)
        if name is not None and name.startswith("_"):
            yield Finding("attribute", line, f"access to {_short(name)}")
        if isinstance(node, nodes.Filter) and node.name in ("attr", "map") and _by_attribute(node):
            yield Finding("attribute", line, f"an attribute by name: the filter {node.name}")
        if isinstance(node, (nodes.Import, nodes.FromImport, nodes.Include, nodes.Extends)):
            yield Finding("import", line, f"{type(node).__name__.lower()} of another template")
        if isinstance(node, nodes.Pow) or (isinstance(node, nodes.Const) and _large(node.value)):
            yield Finding("work", line, "a power" if isinstance(node, nodes.Pow) else f"the number {node.value}")
        text = node.data if isinstance(node, nodes.TemplateData) else _literal(node)
        if text:
            yield from _in_text(text, line)


def _in_text(text: str, line: int) -> Iterator[Finding]:
    for kind, pattern in (("url", _URL), ("base64", _BASE64), ("attribute", _DUNDER)):
        match = pattern.search(text)
        if match:
            yield Finding(kind, line, _short(text[match.start() :]))
    sentence = _SENTENCE.search(text)
    if sentence:
        yield Finding("text", line, _short(text[sentence.start() :]), refused=False)


def _triggers(tree: nodes.Node) -> Iterator[Finding]:
    """Decisions by words in a message: the way of a template that changes prompts only now and then."""
    from jinja2 import nodes

    names = _content_names(tree)
    for node in walk(tree):
        sides: list[nodes.Node] = []
        if isinstance(node, nodes.Compare):
            sides = [node.expr, *(operand.expr for operand in node.ops)]
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr in _STRING_TESTS:
            sides = [node.node.node, *node.args]
        if not any(_is_content(side, names) for side in sides):
            continue
        for text in (text for side in sides for text in _literals(side)):
            if _ordinary(text):
                yield Finding("trigger", node.lineno or 0, f"message content is compared with {_short(text)!r}")


def _ordinary(text: str) -> bool:
    """Whether a literal has words that a user's text could have, rather than special tokens or kinds of parts."""
    if text in (*_PARTS, *_PART_KEYS) or _SPECIAL.search(text):
        return False
    return _WORD.search(_MARKUP.sub(" ", text)) is not None


def _content_names(tree: nodes.Node) -> set[str]:
    """Variables that hold message content: set from it, or looped over it."""
    from jinja2 import nodes

    pairs: list[tuple[nodes.Node, nodes.Node]]
    pairs = [(n.target, n.node) for n in walk(tree) if isinstance(n, nodes.Assign)]
    pairs += [(n.target, n.iter) for n in walk(tree) if isinstance(n, nodes.For)]
    names = set(_CONTENT)
    for _ in range(_HOPS):
        found = {t.name for t, value in pairs if isinstance(t, nodes.Name) and _is_content(value, names)}
        if found <= names:
            break
        names |= found
    return names


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    """Whether an expression is a message's content, changed perhaps by filters, methods, slices or additions."""
    from jinja2 import nodes

    while True:
        if isinstance(node, nodes.Name):
            return node.name in names
        if isinstance(node, (nodes.Getattr, nodes.Getitem)):
            name = _accessed(node)
            if name is not None:
                return name in _CONTENT
            node = node.node
        elif isinstance(node, nodes.Filter) and node.node is not None:
            node = node.node
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            node = node.node.node
        elif isinstance(node, (nodes.Concat, nodes.Add)):
            parts = node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right]
            return any(_is_content(part, names) for part in parts)
        else:
            return False


def _accessed(node: nodes.Node) -> str | None:
    """The attribute or the literal key that `node` takes from something."""
    from jinja2 import nodes

    if isinstance(node, nodes.Getattr):
        return node.attr
    return _literal(node.arg) if isinstance(node, nodes.Getitem) else None


def _by_attribute(node: nodes.Filter) -> bool:
    """`|attr(...)`, or `|map("attr", ...)` and `|map(attribute="__...")`, all ways to say a name as data."""
    named = [_literal(argument) for argument in node.args] + [_literal(pair.value) for pair in node.kwargs]
    return node.name == "attr" or any(name is None or name.startswith(("attr", "_")) for name in named)


def _literal(node: nodes.Node) -> str | None:
    """The text of a literal, or of literals that are joined."""
    from jinja2 import nodes

    if isinstance(node, nodes.Const):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, (nodes.Concat, nodes.Add)):
        parts = node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right]
        texts = [_literal(part) for part in parts]
        return "".join(text for text in texts if text is not None) if None not in texts else None
    return None


def _literals(node: nodes.Node) -> Iterator[str]:
    """The literal texts that a side of a comparison offers: one, or those of a list."""
    from jinja2 import nodes

    for part in node.items if isinstance(node, (nodes.List, nodes.Tuple)) else [node]:
        text = _literal(part)
        if text is not None:
            yield text


def _large(value: object) -> bool:
    return isinstance(value, (int, float)) and not -_LARGE_NUMBER < value < _LARGE_NUMBER


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
