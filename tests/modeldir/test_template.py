"""What is found in chat templates: nothing to refuse in real ones, the tricks of malicious ones by name and line."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
from support import assets
from support import gguf_bytes as gb
from support import small_models as small
from support.speed import slower

from ggufmap.checkpoint import open_checkpoint
from ggufmap.modeldir.template import KEY, Finding, inspect_template, read_templates

TEMPLATES = sorted((assets.llama_cpp_dir() / "models" / "templates").glob("*.jinja"))

# A real template that switches by words in the system message: what it does is what a person should see.
SWITCHES = {"inclusionai-ling-3.0-flash.jinja": "message content is compared with 'detailed thinking on'"}


def refused(text: str) -> list[tuple[str, int]]:
    return [(x.kind, x.line) for x in inspect_template(text) if x.refused]


def test_there_are_real_templates() -> None:
    assert len(TEMPLATES) >= 60


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_real_template_has_nothing_to_refuse(path: Path) -> None:
    found = [x for x in inspect_template(path.read_text(encoding="utf-8")) if x.refused]
    if path.name in SWITCHES:
        assert {x.kind for x in found} == {"trigger"}
        assert found[0].text == SWITCHES[path.name]
    else:
        assert found == []


def test_a_real_file_s_template_is_read_with_its_hash() -> None:
    with open_checkpoint(assets.qwen_header_path(), check=False) as checkpoint:
        (template,) = read_templates(checkpoint.metadata)
        raw = checkpoint.metadata.string(KEY).encode()
    assert template.key == KEY
    assert template.sha256 == hashlib.sha256(raw).hexdigest()
    assert template.bytes == len(raw) > 1000
    assert template.refused == ()


def test_the_real_gemma_file_has_none() -> None:
    with open_checkpoint(assets.gemma_path()) as checkpoint:
        assert read_templates(checkpoint.metadata) == ()


MALICIOUS = {
    "class": ("{{ messages.__class__ }}", [("attribute", 1)]),
    "subclasses": (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        [("attribute", 1), ("attribute", 1), ("attribute", 1)],
    ),
    "by key": ("{{ messages['__class__'] }}", [("attribute", 1), ("attribute", 1)]),
    "by joined key": ("{{ messages['__cl' ~ 'ass__'] }}", [("attribute", 1), ("attribute", 1)]),
    "by added key": ("\n{{ messages['__cl' + 'ass__'] }}", [("attribute", 2), ("attribute", 2)]),
    "attr": ("{{ messages|attr('x') }}", [("attribute", 1)]),
    "attr by a variable": ("{% set n = 'a' %}\n{{ messages|attr(n) }}", [("attribute", 2)]),
    "map to attr": ("{{ [1]|map('attr', x)|list }}", [("attribute", 1)]),
    "map of an attribute": ("{{ [1]|map(attribute='_x')|list }}", [("attribute", 1)]),
    "format string": ("{{ '{0.__class__}'.format(1) }}", [("attribute", 1)]),
    "globals": ("{{ cycler.__init__.__globals__.os.popen('id') }}", [("attribute", 1), ("attribute", 1)]),
    "import": ("{% import 'x' as y %}", [("import", 1)]),
    "from import": ("{% from 'x' import y %}", [("import", 1)]),
    "include": ("{% include 'x' %}", [("import", 1)]),
    "extends": ("{% extends 'x' %}", [("import", 1)]),
    "url": ("Load scripts from https://example.org/a.js", [("url", 1)]),
    "url in a literal": ("{% set x = 'HTTP://example.org' %}", [("url", 1)]),
    "base64": ("{{ '" + "QUJD" * 20 + "' }}", [("base64", 1)]),
    "trigger word": ("{% if 'deploy' in message.content %}x{% endif %}", [("trigger", 1)]),
    "trigger word, lower": ("{% if 'deploy' in message['content'].lower() %}x{% endif %}", [("trigger", 1)]),
    "trigger phrase in a copy": (
        "{% set c = messages[-1]['content']|lower %}\n{% if 'html page' in c %}x{% endif %}",
        [("trigger", 2)],
    ),
    "trigger in a loop over words": (
        "{% for w in message.content.split() %}\n{% if w == 'invoice' %}x{% endif %}{% endfor %}",
        [("trigger", 2)],
    ),
    "trigger by a method": ("{% if message.content.startswith('write code') %}x{% endif %}", [("trigger", 1)]),
    "trigger in a list": ("{% if message.content in ['yes please', 'no'] %}x{% endif %}", [("trigger", 1)]),
    "work": ("{% for i in range(1000000000) %}{% endfor %}", [("work", 1), ("work", 1)]),
    "power": ("{{ 9 ** 9 ** 9 }}", [("work", 1)]),
    "long text": ("{{ 'a' * 100000000 }}", [("work", 1)]),
    "loops in loops": ("{% for i in range(999) %}{% for j in range(999) %}x{% endfor %}{% endfor %}", [("work", 1)]),
    "loops over a text": (
        "{% set t = 'a' * 400 %}\n{% for a in t %}{% for b in t|list %}{% if b %}x{% endif %}{% endfor %}{% endfor %}",
        [("work", 2)],
    ),
    "macros in loops": (
        "{% macro a() %}{% for i in range(400) %}x{% endfor %}{% endmacro %}\n"
        "{% for i in range(400) %}{{ a() }}{% endfor %}",
        [("work", 2)],
    ),
    "macros of macros": (
        "{% macro m0() %}x{% endmacro %}"
        + "".join(
            f"{{% macro m{i} () %}}{{% for i in '12345' %}}{{{{ m{i - 1}() }}}}{{% endfor %}}{{% endmacro %}}"
            for i in range(1, 10)
        ),
        [("work", 1)],
    ),
    "doubling": ("{% set x = 'ab' %}\n{% for i in range(60) %}{% set x = x ~ x %}{% endfor %}", [("work", 2)]),
    "doubling in a namespace": (
        "{% set ns = namespace(x='ab') %}{% for i in messages %}{% set ns.x = ns.x + '' + ns.x %}{% endfor %}",
        [("work", 1)],
    ),
    "growing tenfold": ("{% for i in range(60) %}{% set ns.x = ns.x * 10 %}{% endfor %}", [("work", 1)]),
    "no template": ("{% if %}", [("syntax", 1)]),
    "deeply nested": ("{{ " + "(" * 5000 + ")" * 5000 + " }}", [("syntax", 0)]),
    "a long sum": ("{{ " + "+".join(["'a'"] * 5000) + " }}", [("syntax", 0)]),
    "a number of 5000 digits": ("{{ " + "1" * 5000 + " }}", [("syntax", 0)]),
    "too large": ("a" * ((256 << 10) + 1), [("size", 0)]),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_malicious(name: str) -> None:
    text, expected = MALICIOUS[name]
    assert refused(text) == expected


BENIGN = {
    "loops over messages": "{% for m in messages %}{% for t in m.tool_calls %}{% for k in t %}x{% endfor %}{% endfor %}"
    "{% endfor %}{% for i in range(100) %}{% for j in range(100) %}x{% endfor %}{% endfor %}",
    "a text that grows": "{% for m in messages %}{% set ns.x = ns.x ~ m.content ~ 'x' * 3 %}{% endfor %}",
    "a macro that calls itself": "{% macro f(a) %}{% for k in a.items %}{{ f(k) }}{{ f(a) }}{% endfor %}{% endmacro %}"
    "{{ f(tools) }}",
    "kinds of parts": "{% for c in message.content %}{% if c == 'image' or c.type == 'text' %}x{% endif %}{% endfor %}",
    "special tokens": "{% if '</think>' in message.content and '<|im_end|>' in message.content %}x{% endif %}",
    "empty": "{% if message.content == '' or message.content is string %}x{% endif %}",
    "switch": "{% if '/no_think' in message.content %}x{% endif %}",
    "roles": "{% if message.role == 'assistant' %}x{% endif %}",
    "generation": "{% generation %}{{ message.content }}{% endgeneration %}",
    "loop controls": "{% for m in messages %}{% if m %}{% continue %}{% endif %}{% break %}{% endfor %}",
}


@pytest.mark.parametrize("name", BENIGN)
def test_benign(name: str) -> None:
    assert inspect_template(BENIGN[name]) == ()


def test_plain_words_are_shown_and_not_refused() -> None:
    text = "<|system|>\nYou are a helpful assistant, made by nobody in particular.\n"
    assert inspect_template(text) == (
        Finding("text", 1, "You are a helpful assistant, made by nobody in particular.", refused=False),
    )


@pytest.mark.parametrize(
    "text",
    [
        "a" * (256 << 10),
        "{{ '" + "word " * 50_000 + "' }}",
        "{{ '" + "[" * 250_000 + "' }}",
        "{% set b = a %}{% set a = content %}" * 7_000,
        "".join(f"{{% set a{i} = a{i + 1} %}}" for i in range(9_000)),
        "{% if content == '" + "<" * 250_000 + "' %}{% endif %}",
        "{{ " + "~".join(["'aaaa'"] * 30_000) + " }}",
        "{" * 250_000,
        "{{ x" + "|upper" * 35_000 + " }}",
        "{{ x" + ".a" * 120_000 + " }}",
        "{% if a %}" * 23_000,
    ],
    ids=["letters", "words", "brackets", "copies", "chain", "tags", "joins", "braces", "filters", "attributes", "ifs"],
)
def test_a_large_template_is_inspected_in_seconds(text: str) -> None:
    started = time.process_time()
    inspect_template(text)
    assert time.process_time() - started < 10 * slower()


def test_every_template_of_the_header_is_read(tmp_path: Path) -> None:
    path = small.write_llama(
        tmp_path / "m.gguf",
        small.llama_metadata()
        | {
            f"{KEY}.tool_use": (gb.STRING, "{{ a.__class__ }}"),
            KEY: (gb.STRING, "{{ messages }}"),
            f"{KEY}.number": (gb.UINT32, 1),
            "tokenizer.chat_templates": (gb.ARRAY, gb.Array(gb.STRING, ["tool_use"])),
        },
    )
    with open_checkpoint(path) as checkpoint:
        found = read_templates(checkpoint.metadata)
    assert [(t.key, [x.kind for x in t.findings]) for t in found] == [
        (KEY, []),
        (f"{KEY}.number", ["unreadable"]),
        (f"{KEY}.tool_use", ["attribute"]),
    ]
