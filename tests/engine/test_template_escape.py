"""A chat template that wants out of its sandbox, in a file that is served: chat is off, or the sandbox holds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
from engine.server import GGUFMAP, Server, free_port
from support import gguf_edit
from support.converter import TinyFactory

from ggufmap.modeldir.template import KEY, inspect_template

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

OPTIONS = ("--host", "127.0.0.1", "--max-model-len", "128", "--enforce-eager", "--max-num-seqs", "2")
OPTIONS += ("--dtype", "float32")
RENDER_TIMEOUT_S = 3
HARMLESS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def attempts(mark: Path) -> dict[str, str]:
    """By the message that asks for it: what would write a file, change the server's objects, or work without end."""
    write = f"({str(mark)!r}, 'w').close()"
    return {
        "dunder": f"{{{{ cycler.__init__.__globals__['__builtins__']['open']{write} }}}}",
        "attr": f"{{{{ (cycler|attr('__init__')|attr('__globals__'))['__builtins__']['open']{write} }}}}",
        "by key": f"{{{{ joiner['__init__']['__globals__']['__builtins__']['open']{write} }}}}",
        "import": f"{{{{ namespace.__init__.__globals__['__builtins__']['__import__']('io').open{write} }}}}",
        "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__()[0]() }}",
        "format": "{{ '{0.__class__.__init__.__globals__}'.format(cycler)[0].x() }}",
        "format_map": "{{ '{a.__class__.__init__.__globals__}'.format_map({'a': cycler})[0].x() }}",
        "append": "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
        "update": "{{ messages[0].update({'role': 'system'}) }}",
        "range": "{% for i in range(10 ** 12) %}x{% endfor %}",
    }


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


STOPPED = ("is unsafe", "'jinja2.runtime.Undefined object' has no attribute", "Range too big")


def hostile(mark: Path) -> str:
    """A template that does what the message says."""
    cases = {**attempts(mark), "loops": LOOPS}
    tests = "".join(f"{{% elif c == {name!r} %}}{text}" for name, text in cases.items())
    return f"{{% set c = messages[0]['content'] %}}{{% if not c %}}{tests}{{% else %}}{HARMLESS}{{% endif %}}"


def served(gguf: Path, log: Path, *options: str) -> Server:
    port = free_port()
    command = [*GGUFMAP, "serve", str(gguf), "--offline", *options, "--", "--port", str(port), *OPTIONS]
    return Server(command, port, log, VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT=str(RENDER_TIMEOUT_S))


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mark") / "escaped"


@pytest.fixture(scope="module")
def gguf(tiny: TinyFactory, mark: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = gguf_edit.read(tiny("llama")[1])
    file.set(KEY, hostile(mark))
    return file.write(tmp_path_factory.mktemp("hostile") / "model.gguf")


@pytest.fixture(scope="module")
def forced(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(gguf, tmp_path_factory.mktemp("forced") / "log", "--force") as server:
        server.wait_ready()
        yield server


def chat(server: Server, content: str, **more: str) -> tuple[int, str]:
    messages = [{"role": "user", "content": content}]
    return server.ask("/v1/chat/completions", {"model": "model", "messages": messages, "max_tokens": 2, **more})


def assert_completes(server: Server) -> None:
    status, text = server.ask("/v1/completions", {"model": "model", "prompt": [5, 6, 7], "max_tokens": 2})
    assert status == 200, text
    assert len(json.loads(text)["choices"]) == 1


def test_each_attempt_is_real_and_found(mark: Path) -> None:
    """Without a sandbox they write the file, or reach what they name; each is a finding that turns chat off."""
    environment = jinja2.Environment()
    for name, text in attempts(mark).items():
        assert any(finding.refused for finding in inspect_template(text)) or name in ("append", "update"), name
        if str(mark) in text:
            environment.from_string(text).render(messages=[])
            assert mark.exists(), name
            mark.unlink()
    assert [finding.kind for finding in inspect_template(LOOPS) if finding.refused] == ["work"]


def test_by_default_chat_is_off_and_completions_work(gguf: Path, mark: Path, tmp_path: Path) -> None:
    with served(gguf, tmp_path / "log") as server:
        server.wait_ready()
        for content in ("hello", "dunder"):
            status, text = chat(server, content)
            assert status == 400
            assert "chat is off: the chat template of the GGUF file has findings" in text
        assert chat(server, "hello", chat_template=HARMLESS)[0] == 400  # nor does a request bring its own
        assert_completes(server)
        assert server.stop() == 0, server.said()[-3000:]
    assert "Chat is off: the file's chat template has" in server.said()
    assert not mark.exists()


@pytest.mark.parametrize("name", attempts(Path("x")))
def test_when_forced_vllm_s_sandbox_stops_it(forced: Server, mark: Path, name: str) -> None:
    status, text = chat(forced, name)
    assert status == 400, text
    assert any(word in json.loads(text)["error"]["message"] for word in STOPPED), text
    assert not mark.exists()
    assert chat(forced, "hello")[0] == 200  # the server goes on, with its own objects as they were


def test_when_forced_endless_loops_end_one_request(forced: Server) -> None:
    """Last: vLLM gives the request up, a thread of the server goes on for ever, and yet the server can be stopped."""
    started = time.monotonic()
    status, text = chat(forced, "loops")
    assert status >= 400 and f"Chat template rendering timed out after {RENDER_TIMEOUT_S:.1f}s" in text, text
    assert time.monotonic() - started < 10 * RENDER_TIMEOUT_S
    assert chat(forced, "hello")[0] == 200
    assert_completes(forced)
    assert forced.stop() == 0, forced.said()[-3000:]
    assert "a thread has not ended within 10 s: left behind" in forced.said()
    assert forced.left_behind() == []
